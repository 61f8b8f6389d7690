"""A nonexistent GPU for tests above the device layer: results from the reference, and times from estimates."""

from __future__ import annotations

from typing import Any

from roller.targets.kinds import GPU
from roller.targets.lazy import import_object
from roller.targets.target import Target


def _open_null_device(index: int, arch: str) -> Any:
    del index  # all are identical
    return import_object("roller.backends.null.gpu:NullGpu")(arch=arch)


TARGET = Target(
    "null", GPU, launcher="roller.backends.null.device:NullKernel", device="null", numbered=False,
    worker="roller.backends.null.device:NullDevice", session_device=_open_null_device, pretends=True, timed=False,
)  # fmt: skip
