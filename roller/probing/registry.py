"""All probes by device kind, in order of execution."""

from __future__ import annotations

from pathlib import Path

from roller.core.package_folders import shipped_folder
from roller.probing.probe_header import Probe
from roller.targets import KINDS


def probes(kind: str) -> tuple[Probe, ...]:
    """Return the probes for a kind of device: ``PROBES`` in its subpackage of ``roller.probing``."""
    found: tuple[Probe, ...] = KINDS[kind].module_for("probing").PROBES
    return found


def microbench_folder() -> Path:
    """Return the folder with the probes' sources."""
    return shipped_folder("microbench")
