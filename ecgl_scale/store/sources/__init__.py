"""One small file a format; each turns files into a ``GraphSource`` and unpickles nothing."""
