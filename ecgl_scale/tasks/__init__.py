"""Which nodes are learned when: the stream of tasks, its split, the graph of each task, and how well each is known."""
