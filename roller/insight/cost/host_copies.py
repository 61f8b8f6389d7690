"""Copies between host and device, over a link that specifications do not yet describe."""

from __future__ import annotations

import math
from collections.abc import Iterable

from roller.insight.cost.gpu.operator_view import itemsize, total_bytes
from roller.insight.trace.trace import Operator

#: Bandwidth of the link. Assumed: the rate that PCIe 4.0 x16 reaches in practice; the theoretical rate is 31.5e9.
HOST_LINK_BYTES_PER_S = 25e9
_COPIES = frozenset(("aten._to_copy.default", "aten.copy_.default"))


def host_copy_bytes(operators: Iterable[Operator]) -> float:
    """Return the number of bytes that copies move between host tensors and device tensors."""
    return math.fsum(_bytes_copied_from_or_to_host(o) for o in operators if o.name in _COPIES)


def host_copy_notes(operators: Iterable[Operator], iteration_s: float) -> tuple[str, ...]:
    """Return one note if the copies take at least a twentieth of the step's time on the host link, else ``()``."""
    size_bytes = host_copy_bytes(operators)
    link_s = size_bytes / HOST_LINK_BYTES_PER_S
    if link_s < 0.05 * iteration_s:
        return ()
    return (
        f"copies between host and device: {size_bytes / 2**20:.0f} MiB a step are priced as copies within the device. "
        f"A link of {HOST_LINK_BYTES_PER_S / 1e9:.0f} GB/s takes {1e3 * link_s:.1f} ms more.",
    )


def _bytes_copied_from_or_to_host(operator: Operator) -> float:
    sides = [operator.arguments.get(name) for name in ("self", "src") if name in operator.arguments]
    hosts = [side for side in sides if isinstance(side, dict) and "host" in side]
    if hosts:
        return float(sum(math.prod(side["host"]) * itemsize(side["dtype"]) for side in hosts))
    return float(total_bytes(operator.inputs)) if operator.inputs and not operator.outputs else 0.0
