"""Who multiplies: our own kernels, torch, or DGL. DGL is imported nowhere else in this room."""
