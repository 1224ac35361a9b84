"""How far a run or a sweep is, from the files that it writes: what ``ecgl status`` shows."""
