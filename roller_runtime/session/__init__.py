"""Sessions: saved models are loaded, bound to memory, and run."""
