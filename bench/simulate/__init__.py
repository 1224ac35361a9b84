"""How long a stage takes on machines that we do not have: formulas, rates measured here, and a check of both here."""
