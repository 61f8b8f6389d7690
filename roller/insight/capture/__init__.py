"""Traces training scripts without providers, in a process that can neither change files nor use the network."""
