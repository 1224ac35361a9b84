"""Features on disk: dense as a Zarr array, sparse as CSR in Arrow, with one face for both."""
