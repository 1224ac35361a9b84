"""About how long a run will take, from its plan and a second of measurement on this machine.

The room counts the work of each stage, from the graph, the stream and the config, and divides it by what the machine
does in a second. It may read a sample of the store. Its seconds are shown to people; no result depends on them.
"""
