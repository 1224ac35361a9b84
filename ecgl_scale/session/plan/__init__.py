"""What a run will need of memory and disk, before it starts; and what to change where that is too much.

Each stage says in its own room what it needs; here the sizes of all tasks are found, and stages are added up. The room
knows the config, the store and the stream of tasks, and reads no more of them than their sizes.
"""
