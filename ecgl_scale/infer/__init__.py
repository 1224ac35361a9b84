"""Inference: the trained weights as a graph network over a whole store, layer by layer, within a memory budget.

An inference is read in this order. ``program`` puts the products and aggregations in order; ``layout`` decides under a
budget which matrices are in memory and how many columns are held at once; ``steps`` is the two as a list, each step
writing one matrix; ``job`` is all of that with the graph and its cut, as every worker must know it. ``works`` says what
a step does to a block of rows, ``execute`` runs the steps on the engine, with the rows between them in ``matrices`` and
what is finished in ``journal``. ``layerwise`` (logits) and ``hops`` (propagated features) are the entrances.

The room knows stores, the operator P (``graph``), feature scaling and the engine. It gets weights as arrays, and knows
nothing of models, training or runs. ``backends`` sum and multiply; torch and DGL are imported there alone.
"""
