"""How far a run or a sweep is, while it goes and after it has ended: what ``ecgl status`` shows.

The room reads the files that a run writes, from any process and at any time, and locks and changes none. It knows the
names in those files, never a live object of a run; no room that computes imports it.
"""
