"""Object stores (s3://, gs://, az://): names, requests, and a bounded copy of what was fetched on a local disk.

An object store has no rename, no append, no map and no lock. So objects are put whole, read in ranges, and computed on
as plain files of this machine, where all other rooms know how to check and map them.
"""
