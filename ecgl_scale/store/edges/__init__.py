"""Edges on disk: parted by destination, sorted, written as CSR rows and as tiles, and read back.

plan -> partition (spill) -> sort -> write (scratch, tiles) -> choose_order (order) -> write_tiles -> read
"""
