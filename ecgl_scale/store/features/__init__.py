"""Features on disk: dense as a Zarr array, sparse as CSR in Arrow, with one face for both.

``face`` says what both can do, ``files`` chooses (``choose``), writes and opens; ``dense`` and ``sparse`` are the two.
"""
