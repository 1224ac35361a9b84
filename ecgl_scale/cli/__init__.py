"""The ``ecgl`` command: thin, no logic of its own."""
