"""Compiled loops on plain arrays: numpy and numba only, no files, no torch, nothing of ecgl_scale.

Kernels are serial and release the GIL; callers run several in threads, each on its own data. So results never
depend on the number of threads, and no thread pool of numba's is started (it would hang after a fork).
"""
