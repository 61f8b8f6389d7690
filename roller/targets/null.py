"""A nonexistent GPU for tests above the device layer: results from the reference, and times from estimates."""

from __future__ import annotations

from typing import Any

from roller.targets.kinds import GPU
from roller.targets.lazy import loaded
from roller.targets.target import Target


def _open(index: int, arch: str) -> Any:
    del index  # all are identical
    return loaded("roller.backends.null.gpu:NullGpu")(arch=arch)


TARGET = Target(
    "null", GPU, launcher="roller.backends.null.device:NullKernel", device="null", numbered=False,
    worker="roller.backends.null.device:NullDevice", session_device=_open, pretends=True, timed=False,
)  # fmt: skip
