"""Release of roller and roller_runtime, which are always installed at the same one."""

__version__ = "0.1.0"
