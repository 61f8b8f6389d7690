"""The most memory that this process had since a moment, as Linux counts it."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

try:
    import resource
except ImportError:  # a system without it
    resource = None  # type: ignore[assignment]


def reset_peak() -> None:
    """Begin to count anew, where the system allows it; else the peak is that of the whole process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the greatest resident size since :func:`reset_peak`; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if resource is None:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
