"""The profile of a training step: where its time and memory go, by module, line, operator and kernel."""
