"""A whole run: tasks, training, memory, inference and results, in order, resumable at every step."""
