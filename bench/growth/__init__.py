"""A graph that grows: what an append, an update and a prediction of the new nodes cost, against doing all of it again."""
