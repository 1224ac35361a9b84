"""Which nodes are learned when: the stream of tasks, its split, the graph of each task, and how well each is known.

``stream`` makes tasks of a store's labels or times (``task_nodes``) and parts them for training and testing
(``split``); ``graphs`` extracts a task's nodes and edges (``subset``) into a store of its own, with features scaled
(``scaling``); ``metrics`` and ``measures`` turn predictions into numbers. It knows stores and the
engine, and no model.
"""
