"""Traces: a training step's operators, allocations and frees as plain data; ``pytorch`` creates them from models."""
