"""Operators of PyTorch, by its own samples, through torch.compile(backend="roller")."""
