"""Keys: what users call their nodes, and the way from a key to its row and back."""
