"""Ranking the nodes of a graph, out of core, and choosing those that are worth remembering.

A ranking has three stages: the attribute vector says how much each node resembles all others (``attribute``), PageRank
restarts there and gives importance (``pagerank``), and diversity is how far a node is from its neighbours
(``diversity``). ``ranking`` runs them one after the other with a journal, a clock and a plan; ``store_ranking`` is the
whole of ``ecgl rank``, ``choose`` that of a task's choice for the memory bank. Files named after what a block is
(``sweep``, ``attribute_units``, ``attribute_strips``, ``distances``) say what the engine does to one. A bank may be
filled without a ranking: by chance, or with nodes that stand for their class (``typical``, ``herding``, ``kmeans``).

The room knows stores and the engine. It knows nothing of models or runs, and of tasks only how rows are scaled:
features are those of a store, or an array that the caller has made.
"""
