"""What a run will need of memory and disk, before it starts; and what to change where that is too much."""
