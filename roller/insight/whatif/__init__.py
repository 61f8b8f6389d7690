"""What an optimisation would change: a profile as a graph of tasks, simulated."""
