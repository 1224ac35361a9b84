"""The settings of a run: one strict schema, presets, YAML, sweeps of configs, and messages for what a user got wrong.

Every key, its range and its default is declared here, and docs/configuration.md is made from it. The room knows what
settings mean to a user and which of them contradict each other; it opens no graph and computes nothing.
"""
