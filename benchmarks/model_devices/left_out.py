"""Every device predicted with the model's free constants chosen on the other devices alone.

No constant was fitted to these measurements but the time of a framework's call. What numbers of specifications are
assumed and the same on all devices could have been, so that they are what is chosen again here: from a few values each,
one constant at a time, the value with the least mean error over the other devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.model_devices.cases import Case
from benchmarks.model_devices.pricing import Priced, priced
from benchmarks.model_devices.summary import limit_of
from roller.hardware import DeviceSpec
from roller.templates.common.library_kernel_limits import POLICIES

#: How much larger an error may be where the device had no part in the choice of constants (issue 17).
ALLOWED = 1.5
_CALL = "call_s"
#: Free constants by their path in a specification, or :data:`_CALL`, with the values they are chosen from.
FREE: dict[str, tuple[float, ...]] = {
    "execution.overlap_blocks": (1.5, 2.0, 2.5, 3.0),
    "memory_layers.l2.kept_share": (0.25, 0.5, 0.75, 1.0),
    "memory_layers.global.saturation_exponent": (1.2, 1.4, 2.0),
    _CALL: (1.0e-5, 1.5e-5, 2.0e-5),
}
#: Errors of one run by device and family.
Errors = dict[tuple[str, str], float]


@dataclass(frozen=True)
class LeftOut:
    """A device and family: its error with constants as they are, and as the other devices alone would choose them."""

    device: str
    family: str
    stated: float
    chosen: float
    constants: tuple[tuple[str, float], ...]

    @property
    def limit(self) -> float | None:
        """Largest error allowed of a device that is left out."""
        limit = limit_of(self.device, self.family)
        return None if limit is None else ALLOWED * limit


def judged(case: Case) -> bool:
    """Whether a kernel has a part in this: of threads, which four devices have, and priced as the one that ran."""
    return not case.is_matrix and case.policy is not None


def left_out(cases: Sequence[Case], specs: dict[str, DeviceSpec]) -> Iterator[LeftOut]:
    """Yield the errors of the float32 kernels of every device left out in turn."""
    mine = [c for c in cases if judged(c)]
    devices = list(dict.fromkeys(c.device for c in mine))
    if len(devices) < 2:
        return

    def run(constants: dict[str, float]) -> list[Priced]:
        return _priced_with(constants, mine, specs)

    stated = _errors(run({}))
    tried = {(name, value): _errors(run({name: value})) for name, values in FREE.items() for value in values}
    for device in devices:
        constants = {name: _best(name, device, tried) for name in FREE}
        chosen = _errors(run(constants))
        for family in dict.fromkeys(f for d, f in stated if d == device):
            yield LeftOut(device, family, stated[device, family], chosen[device, family], tuple(constants.items()))


def _best(name: str, device: str, tried: dict[tuple[str, float], Errors]) -> float:
    """Return the value of a constant with the least mean error over all devices but one."""
    off = {v: np.mean([e for (d, _), e in tried[name, v].items() if d != device]) for v in FREE[name]}
    return min(off, key=lambda v: float(off[v]))


def _errors(found: Sequence[Priced]) -> Errors:
    keys = dict.fromkeys((p.case.device, p.case.family) for p in found)
    return {
        key: float(np.mean([abs(p.ratio - 1.0) for p in found if (p.case.device, p.case.family) == key]))
        for key in keys
    }


def _priced_with(constants: dict[str, float], cases: Sequence[Case], specs: dict[str, DeviceSpec]) -> list[Priced]:
    numbers = {name: value for name, value in constants.items() if name != _CALL}
    changed = {name: s.with_overrides(numbers) if numbers else s for name, s in specs.items()}
    with _called(constants.get(_CALL)):
        return list(priced(cases, changed))


@contextmanager
def _called(call_s: float | None) -> Iterator[None]:
    """Take another time of a framework's call meanwhile."""
    stated = POLICIES["library"]
    assert stated is not None
    POLICIES["library"] = replace(stated, call_s=stated.call_s if call_s is None else call_s)
    try:
        yield
    finally:
        POLICIES["library"] = stated
