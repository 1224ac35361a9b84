"""The operator P of a stored graph: P x = row_scale * (A + I) (source_scale * x), the messages of every graph network.

``adjacency`` shows the stored edges as everybody here sees them, with exactly one self loop a node, and has the scales
of every norm. ``propagate`` applies P to graphs that stay on disk, row block by row block; ``autograd`` applies P and
its transpose to torch's tensors with the whole graph in memory; ``partition`` cuts the rows into blocks, by METIS
(``metis``) where that was asked for. Inference aggregates over the same adjacency. The room knows stores and the
engine, and nothing of tasks, weights or learning.
"""
