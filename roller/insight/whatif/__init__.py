"""What-ifs: the predicted effects of optimizations, from simulations of a step's changed graph."""
