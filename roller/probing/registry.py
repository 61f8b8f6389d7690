"""All probes by kind of device, in the order they run."""

from __future__ import annotations

from pathlib import Path

from roller.errors import SpecError
from roller.probing.probe import Probe
from roller.targets import KINDS


def probes(kind: str) -> tuple[Probe, ...]:
    """Return the probes of a kind of device: the tuple ``PROBES`` of ``roller.probing.cpu`` or ``.gpu``."""
    found: tuple[Probe, ...] = KINDS[kind].module_for("probing").PROBES
    return found


def microbench_folder() -> Path:
    """Return the folder of the probes' sources: inside the package if installed, else of the checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "microbench", package.parent / "microbench"):
        if folder.is_dir():
            return folder
    raise SpecError("microbench: expected the folder beside the package, found none. Reinstall roller.")
