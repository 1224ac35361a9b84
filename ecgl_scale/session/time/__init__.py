"""About how long a run will take, from a second of measurement on this machine."""
