"""How work is planned, cut into blocks, run in threads, retried and resumed."""
