"""A run by several processes, its ranks, that share the training: who they are, what they tell each other, their end.

The first rank is the run as it always is, and alone writes its files. The others follow it: see ``follow``.
"""
