"""A whole run: tasks, training, memory, inference and results, in order, resumable at every step.

``run`` is the loop over tasks, ``learner`` what happens to the model in one of them, ``context`` and ``predict`` what a
method may ask for meanwhile; ``state``, ``checkpoint`` and ``directory`` keep a run on disk, and ``ecgl_model`` is the
same learner as a Python object. Sub-rooms: ``plan`` (memory, before anything is done), ``time`` (how long it may take)
and ``sweep`` (many runs). The room knows every room that computes, and is known by the command line alone.
"""
