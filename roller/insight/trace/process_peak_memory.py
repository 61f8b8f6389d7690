"""Measures the peak memory of this process since a given moment."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

try:
    import resource
except ImportError:  # a system without it
    resource = None  # type: ignore[assignment]


def reset_resident_peak() -> None:
    """Start counting again if the system allows it; otherwise, the peak covers the whole life of the process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def resident_peak_bytes() -> int:
    """Return the largest resident size since :func:`reset_resident_peak`; 0 if the system does not report it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if resource is None:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
