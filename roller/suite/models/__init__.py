"""The models of the training benchmark in plain PyTorch, one file per family."""
