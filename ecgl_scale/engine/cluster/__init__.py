"""Work on other processes and machines: blocks travel as units of JSON, rows stay in files that all workers see.

Dask places units and notices lost workers; everything else is ours. What is finished is in our journals and in files,
so that a lost worker, scheduler or client costs the unfinished units only. ``dask_cluster`` and
``dask_processes`` are the files that import dask; ``unit_runner`` is what a worker does; ``handshake`` is what is
compared before anything is written.
"""
