"""The ``ecgl`` command: one file a command, which reads its options, calls a room and prints what came of it.

It may know every room, and no room knows it; whatever is worth calling from Python lives elsewhere. Only here is
anything printed, and an error becomes an exit code. A command imports what it needs when it runs, so ``--help`` is
quick.
"""
