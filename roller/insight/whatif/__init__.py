"""What-ifs: the predicted effects of optimisations, from a step's changed and simulated graph."""
