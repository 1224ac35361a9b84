"""A graph on disk: written once within a memory budget, opened only if complete and verified.

``sources`` read what others have published, ``build`` makes a store of any source, ``graph`` opens one, ``verify``
reads all of it. Within a store ``edges`` are rows and tiles, ``features`` rows of numbers, ``nodes`` columns;
``format`` is the manifest that names every file. The room knows the engine, which runs its work, and nothing of tasks
or learning.
"""
