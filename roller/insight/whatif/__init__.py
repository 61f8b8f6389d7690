"""What-ifs: the predicted effect of an optimisation, from the changed and simulated graph of a step."""
