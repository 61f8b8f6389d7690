"""A GPU emulated on this CPU: runs whole models with no stronger stream ordering than a real device."""

from __future__ import annotations

from typing import Any

from roller.targets.kinds import GPU
from roller.targets.lazy import loaded
from roller.targets.target import Target


def _open(index: int, arch: str) -> Any:
    del index  # there is one processor
    return loaded("roller.emulator.device:EmulatedDevice")(arch=arch, check=False)


TARGET = Target("emulated", GPU, device="emulated", numbered=False, session_device=_open, timed=False)
