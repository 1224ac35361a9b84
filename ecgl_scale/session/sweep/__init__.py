"""Many runs of one config: a grid of settings, several seeds, one directory, resumable."""
