"""Traces a training script that has no providers: it runs in a process that can write and reach nothing."""
