"""Many runs of one config: every combination of a grid with several seeds, in one directory, resumable.

Each run is a process of its own, started by the ``ecgl`` command that the caller gives. The room decides how many go
at a time and what each may use, starts and stops them, and writes the table. It knows plans, states and results of
runs, and nothing of how a run learns.
"""
