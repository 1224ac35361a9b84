"""What came out of runs, side by side: the tables and pictures of ``ecgl report``, as a page and as files.

The room reads the files that finished runs have left, and never a live object of a run; ``watch`` tells it which runs
have not finished, and why. It knows the names in those files, those of the config's keys, and how AA and AF are
defined, but no method by name; matplotlib is imported here alone, and no room that computes imports it.
"""
