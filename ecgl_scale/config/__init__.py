"""The settings of a run: one strict schema, presets, YAML, and messages for what a user got wrong."""
