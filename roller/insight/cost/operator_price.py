"""The price of an operator: the sum of its launches' prices, each of which is computed once and cached."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from roller.errors import RollerError, shown
from roller.hardware import DeviceSpec
from roller.insight.cost.arithmetic_pipe_work import PipeWork, describe_launch, slowest_pipe_work
from roller.insight.cost.gpu import operator_launches
from roller.insight.cost.kernel_launch_types import HostWait, Launch
from roller.insight.cost.kernel_prices import KernelPrice, KernelPricer
from roller.insight.cost.library_kernel_choice import LibraryKernelChoice, kernel_count
from roller.insight.cost.library_settings import DEFAULT_TF32
from roller.insight.trace.progress import report_progress
from roller.insight.trace.torch_release import NEWEST, TorchRelease
from roller.insight.trace.trace import Operator

#: Policy that chooses the kernels: the framework's libraries or Roller.
Policy = Literal["library", "roller"]
POLICIES: tuple[Policy, ...] = ("library", "roller")


@dataclass(frozen=True)
class LaunchPrice:
    """Cost of one launch of an operator, or of several equal launches; see :class:`Price` for shared fields."""

    #: Expression that its kernels compute, or the bytes that they move, such as ``"read 8.0 MiB, write 4.0 MiB"``.
    name: str
    kernels: int
    seconds: float
    resource: str
    #: Work on the slowest arithmetic pipe; ``None`` for launches that are not given by expressions.
    work: PipeWork | None = None
    #: ``None`` if the error is unknown.
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class Price:
    """Cost of an operator on a device."""

    #: Predicted time of its kernels, launches included, on a device that never waits for the host.
    seconds: float
    #: ``seconds`` divided and multiplied by the factor of the expected error.
    lower: float
    upper: float
    #: Resource that bounds its longest kernel: ``"compute"``, ``"dram"``, ``"l2"``, ``"latency"``, ...; ``"none"``
    #: without a launch.
    resource: str
    kernels: int
    #: Basis of the price: ``"library"`` or ``"construct"`` for programs of that kind, ``"stream"`` or
    #: ``"instructions"`` for the bytes or instructions that the mapping gives, ``"bytes"`` for all bytes of an operator
    #: without a mapping, ``"none"`` for a view or an operator with nothing to do.
    provenance: str
    #: Whether the host waits for the operator in order to read a value.
    waits: bool = False
    launches: tuple[LaunchPrice, ...] = ()


def check_policy_is_known(policy: str, known: Sequence[str] = POLICIES) -> None:
    """Raise an error if ``policy`` is not one of ``known``."""
    if policy not in known:
        raise RollerError(f"policy: expected one of {list(known)}, got {shown(policy)}.")


_NOTHING = Price(0.0, 0.0, 0.0, "none", 0, "none")


class Pricer:
    """Prices of operators on one device; each distinct launch is priced once."""

    def __init__(
        self, spec: DeviceSpec, policy: str = "library", kernels: KernelPricer | None = None,
        tf32: Collection[str] = DEFAULT_TF32, release: TorchRelease = NEWEST,
    ) -> None:  # fmt: skip
        # Without ``kernels`` the disk cache is not used; for ``tf32`` and ``release``, see :class:`LibrarySettings`.
        check_policy_is_known(policy)
        self.spec = spec
        self.kernels = kernels or KernelPricer(spec, policy)
        self._ways = LibraryKernelChoice(self.kernels, tf32, release)
        self._known: dict[Any, Price] = {}

    def price_operator(self, operator: Operator, cached_share: float = 0.0) -> Price:
        """Return the price of an operator if ``cached_share`` of its bytes stays in the device's shared cache."""
        key = operator.signature
        found = self._known.get((key, cached_share))
        if found is None:
            found = self._price_launches(*_launches_with_cache(key, operator), cached_share)
            self._known[key, cached_share] = found
        return found

    def _price_launches(self, given: tuple[Launch, ...], mapped: bool, cached_share: float) -> Price:
        if not given:
            return _NOTHING
        ways = [pair for launch in given for pair in self._ways.fastest(launch)]
        chosen = [(launch, price.cached(cached_share)) for launch, price in ways]
        launches, parts = zip(*chosen, strict=True)
        longest = max(parts, key=lambda p: p.seconds)
        seconds, lower, upper = (math.fsum(getattr(p, n) for p in parts) for n in ("seconds", "lower", "upper"))
        provenance = longest.provenance if mapped else "bytes"
        rows = tuple(self._row(x, p) for x, p in zip(launches, parts, strict=True))
        count = sum(row.kernels for row in rows)
        waits = any(isinstance(x, HostWait) for x in launches)
        return Price(seconds, lower, upper, longest.resource, count, provenance, waits, rows)

    def _row(self, launch: Launch, price: KernelPrice) -> LaunchPrice:
        return LaunchPrice(
            describe_launch(launch), kernel_count(launch), price.seconds, price.resource, slowest_pipe_work(launch,
                                                                                                            self.spec),
            price.lower, price.upper,
        )  # fmt: skip


_LAUNCHES: dict[Any, tuple[tuple[Launch, ...], bool]] = {}
_MOST_KEPT = 100_000


def _launches_with_cache(key: Any, operator: Operator) -> tuple[tuple[Launch, ...], bool]:
    """Return, from a cache for all devices, an operator's launches and whether the operator has a mapping."""
    found = _LAUNCHES.get(key)
    if found is None:
        if len(_LAUNCHES) >= _MOST_KEPT:
            _LAUNCHES.clear()
        found = _LAUNCHES[key] = operator_launches(operator)
    return found


def price_operators_and_save(
    pricer: Pricer, operators: Sequence[Operator], cached: Iterable[float] = ()
) -> list[Price]:
    """Return the prices of operators and save the prices of their kernels, even after an interrupt."""
    # ``cached`` gives the share of each operator's bytes that stays in the device's shared cache, by default 0.
    todo, found = tuple(operators), list[Price]()
    try:
        for operator, share in zip(todo, tuple(cached) or (0.0,) * len(todo), strict=True):
            found.append(pricer.price_operator(operator, share))
            report_progress("price", len(found), len(todo))
    finally:
        pricer.kernels.save()
    return found


def price_operator(operator: Operator, device: str | DeviceSpec, policy: str = "library") -> Price:
    """Return the price of one operator; to price many, use :class:`Pricer`, which caches prices.

    Examples
    --------
    >>> from roller.insight.trace.trace import TensorRecord
    >>> x, w, y = (TensorRecord((4096, 4096), (4096, 1), "float32", n) for n in range(3))
    >>> found = price_operator(Operator(0, "aten.mm.default", "forward", (x, w), (y,)), "v100")
    >>> found.resource, found.kernels, 0.009 < found.seconds < 0.014
    ('compute', 1, True)
    """
    from roller.compile_arguments import spec_and_local_device

    return Pricer(spec_and_local_device(device)[0], policy).price_operator(operator)
