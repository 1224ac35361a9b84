"""Learning: the shared weights, the rows they are trained on, the loss, the optimizer, and the nodes to remember.

One task is learned here, as rows (mlp) or as a graph (gcn); ``methods`` say what is kept of earlier tasks and what is
added to the loss. The room takes tasks, graphs and rankings as the rooms before it give them. It knows nothing of run
directories, of resuming or of inference on whole stores.
"""
