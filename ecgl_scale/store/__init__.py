"""A graph on disk: written once within a memory budget, opened only if complete and verified."""
