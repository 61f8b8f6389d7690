"""The price of an operator: of every launch it makes, by the device's model, found once and kept."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from roller.errors import RollerError, shown
from roller.hardware import DeviceSpec
from roller.insight.cost.gpu import launches_of
from roller.insight.cost.kernels import KernelPrice, Kernels
from roller.insight.cost.launches import Fused, Kernel, Launch, Stream, Wait
from roller.insight.trace.progress import report
from roller.insight.trace.trace import Operator

#: Whose kernels run: a framework's libraries, or ours.
Policy = Literal["library", "roller"]
POLICIES: tuple[Policy, ...] = ("library", "roller")


@dataclass(frozen=True)
class Price:
    """What an operator costs a device.

    Parameters
    ----------
    seconds
        Predicted time of its kernels, launches included, on a device that is never waiting for the host.
    lower, upper
        One expected error below and above.
    resource
        What bounds the longest of its kernels: ``"compute"``, ``"dram"``, ``"l2"``, ``"latency"``, ...; ``"none"``
        where nothing is launched.
    kernels
        How many are launched.
    provenance
        ``"library"`` or ``"construct"``: programs of that policy were priced; ``"stream"``: the bytes that its mapping
        names; ``"bytes"``: no mapping, all it reads and writes; ``"none"``: a view, or nothing to do.
    waits
        Whether the host waits for it: it reads a value.
    """

    seconds: float
    lower: float
    upper: float
    resource: str
    kernels: int
    provenance: str
    waits: bool = False


def check_policy(policy: str) -> None:
    """Refuse a policy that there is not.

    Raises
    ------
    RollerError
        It is none.
    """
    if policy not in POLICIES:
        raise RollerError(f"policy: expected one of {list(POLICIES)}, got {shown(policy)}.")


_NOTHING = Price(0.0, 0.0, 0.0, "none", 0, "none")


class Pricer:
    """Prices of operators on one device; each distinct launch is priced once.

    Parameters
    ----------
    spec
        The device, at the clock it is to be priced at.
    policy
        ``"library"``: kernels of PyTorch and the libraries below it. ``"roller"``: the fastest constructed program of
        every expression.
    kernels
        Prices kept from before; of a new one that keeps none on the disk by default.

    Raises
    ------
    RollerError
        Where there is no such policy.
    """

    def __init__(self, spec: DeviceSpec, policy: str = "library", kernels: Kernels | None = None) -> None:
        check_policy(policy)
        self.spec = spec
        self.kernels = kernels or Kernels(spec, policy)
        self._known: dict[Any, Price] = {}

    def price(self, operator: Operator) -> Price:
        """Return the price of an operator."""
        key = operator.signature
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._priced(*_launches(key, operator))
        return found

    def _priced(self, launches: tuple[Launch, ...], mapped: bool) -> Price:
        if not launches:
            return _NOTHING
        parts = [self._launch(x) for x in launches]
        longest = max(parts, key=lambda p: p.seconds)
        seconds, lower, upper = (math.fsum(getattr(p, n) for p in parts) for n in ("seconds", "lower", "upper"))
        provenance = longest.provenance if mapped else "bytes"
        count = sum(_count(x) for x in launches)
        return Price(
            seconds, lower, upper, longest.resource, count, provenance, any(isinstance(x, Wait) for x in launches)
        )

    def _launch(self, launch: Launch) -> KernelPrice:
        if isinstance(launch, Kernel):
            return self.kernels.expression(launch.expr).times(launch.count)
        if isinstance(launch, Fused):
            return self.kernels.fused(launch)
        read, written = launch.read_bytes, launch.written_bytes if isinstance(launch, Stream) else 0.0
        return self.kernels.stream(read, written, _count(launch))


def _count(launch: Launch) -> int:
    if isinstance(launch, Kernel):
        return launch.count
    return 0 if isinstance(launch, Wait) else launch.launches


_LAUNCHES: dict[Any, tuple[tuple[Launch, ...], bool]] = {}
_MOST_KEPT = 100_000


def _launches(key: Any, operator: Operator) -> tuple[tuple[Launch, ...], bool]:
    """Return an operator's launches, the same for every device: a further one maps nothing again."""
    found = _LAUNCHES.get(key)
    if found is None:
        if len(_LAUNCHES) >= _MOST_KEPT:
            _LAUNCHES.clear()
        found = _LAUNCHES[key] = launches_of(operator)
    return found


def price_all(pricer: Pricer, operators: Iterable[Operator]) -> list[Price]:
    """Return the prices of operators, and keep what was found for them, also where an interrupt cuts it short."""
    todo, found = tuple(operators), list[Price]()
    try:
        for operator in todo:
            found.append(pricer.price(operator))
            report("price", len(found), len(todo))
    finally:
        pricer.kernels.save()
    return found


def price(operator: Operator, device: str | DeviceSpec, policy: str = "library") -> Price:
    """Price one operator; of many, :class:`Pricer` keeps what it has found.

    Parameters
    ----------
    operator
        As traced.
    device
        A specification, or its name.
    policy
        As for :class:`Pricer`.

    Examples
    --------
    >>> from roller.insight.trace.trace import TensorRecord
    >>> x, w, y = (TensorRecord((4096, 4096), (4096, 1), "float32", n) for n in range(3))
    >>> found = price(Operator(0, "aten.mm.default", "forward", (x, w), (y,)), "v100")
    >>> found.resource, found.kernels, 0.009 < found.seconds < 0.014
    ('compute', 1, True)
    """
    from roller.arguments import target_of

    return Pricer(target_of(device)[0], policy).price(operator)
