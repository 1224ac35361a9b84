"""What came out of a run: accuracies, the performance matrix, tables."""
