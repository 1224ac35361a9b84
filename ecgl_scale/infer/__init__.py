"""Inference: the trained weights as a graph network, layer by layer over partitions."""
