"""Profiles of a training step: its time and memory by module, line, operator and kernel."""
