"""Running things: memory budget, durable files, events. Imports no torch, dask, zarr or dgl."""
