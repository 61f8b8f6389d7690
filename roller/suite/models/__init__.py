"""The models of the training benchmark in plain PyTorch, one file for each family."""
