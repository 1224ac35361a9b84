"""Learning task after task: the stream of tasks and their graphs, the shared weights, training, the memory bank."""
