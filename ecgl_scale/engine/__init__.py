"""How work is planned, cut into blocks, run, retried and resumed; and with which memory, threads and workers.

A stage says what it does to one block (``work``), with what it is allowed to use (``resources``) and where the rows it
makes go (``place``). An executor decides who does it: threads of this process (``local``), or, for tests, a worker that
fails by a script (``scripted``). What is finished is in a ``journal``. The room knows files and memory, and nothing of
graphs, models or learning: names of kinds of work are all it has of other rooms.
"""
