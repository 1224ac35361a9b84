"""Choosing what to remember: importance (attributed PageRank), diversity, the best of each, out of core."""
