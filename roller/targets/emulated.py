"""A GPU emulated on this CPU: runs whole models with no stronger stream ordering than a real device."""

from __future__ import annotations

from typing import Any

from roller.targets.kinds import GPU
from roller.targets.lazy import import_object
from roller.targets.target import Target


def _open_emulated_device(index: int, arch: str) -> Any:
    del index  # there is one processor
    return import_object("roller.emulator.emulated_device:EmulatedDevice")(arch=arch, check=False)


TARGET = Target("emulated", GPU, device="emulated", numbered=False, session_device=_open_emulated_device, timed=False)
