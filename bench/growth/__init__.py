"""A graph that grows: the cost of an append, an update and new predictions, against doing everything again."""
