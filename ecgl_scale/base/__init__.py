"""The ground floor: files that are whole or not there, memory and its budget, events, locks, signals, progress.

Every other room stands on this one. It knows the operating system and the numbers it is given, and nothing of what
graphs, configs or models mean; it imports no other room, and neither torch nor dask, zarr or dgl.
"""
