"""Traces: the operators, allocations and frees of a training step as plain data; ``pytorch`` makes them from models."""
