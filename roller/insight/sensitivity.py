"""Sensitivity of the time of a model or training step to the numbers of a device, with fixed kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roller.errors import RollerError
from roller.explanation.sensitivity import Sensitivity, of_price
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.hardware.sections import NOT_OF_KERNELS
from roller.insight.cost.cache_residency import cached_shares
from roller.insight.cost.compiled import trace_as_run
from roller.insight.cost.cpu import ProcessorPricer
from roller.insight.cost.kernels import KernelPrice, Kernels
from roller.insight.cost.library_settings import LibrarySettings
from roller.insight.cost.operator_price import Pricer, check_policy
from roller.insight.trace.trace import Trace
from roller.insight.traced_step import TracedStep
from roller.perf.estimate import Estimate
from roller.perf.unit_notes import unit_notes
from roller.templates.common.options import ConstructOptions

#: Function that estimates one kernel on any device.
Program = Callable[[DeviceSpec], Estimate]
#: Expression and the library's policy -> the program chosen on the base device; ``None`` if no program fits it.
Programs = dict[tuple[TensorExpr, str], Program | None]


@dataclass(frozen=True)
class WholeSensitivity:
    """The sensitivity of a model's or step's time to a device's numbers, and notes on its prices."""

    sensitivity: Sensitivity
    notes: tuple[str, ...]


class _Fixed(Kernels):
    """Prices of kernels with the programs that were chosen for a base device."""

    def __init__(self, spec: DeviceSpec, policy: str, programs: Programs, base: DeviceSpec) -> None:
        super().__init__(spec, policy)
        self._programs, self._base = programs, base

    def _price_by_model(self, expr: TensorExpr, library: str) -> KernelPrice:
        key = expr, library
        if key not in self._programs:
            self._programs[key] = _chosen_program(expr, self._base, self.policy, library)
        program = self._programs[key]
        if program is None:  # priced by its bytes, on every device
            return super()._price_by_model(expr, library)
        return self._from_estimate(program(self.spec), "library" if self.policy == "library" else "construct")


def _chosen_program(expr: TensorExpr, spec: DeviceSpec, policy: str, library: str) -> Program | None:
    """Return the estimator for the program chosen on a device; ``None`` if no program fits the device."""
    from roller.construction.constructor import construct_candidates
    from roller.construction.library import library_program
    from roller.construction.program_names import estimate_named

    try:
        if policy == "library" and spec.traits.blocks:
            return library_program(expr, spec, library)
        program = construct_candidates(expr, spec, ConstructOptions())[0].program
    except RollerError:
        return None
    return lambda other: estimate_named(program, other)


def _varied_fields(spec: DeviceSpec) -> list[str]:
    return [path for path in spec.values() if path not in NOT_OF_KERNELS or not spec.traits.discrete]


def sensitivity_of_step(
    step: TracedStep | Trace,
    device: DeviceSpec,
    *,
    batch: int | None = None,
    amp: str | None = None,
    policy: str = "library",
) -> WholeSensitivity:
    """Return the sensitivity of a training step's device time to the numbers of a device."""
    check_policy(policy)
    trace = step.at(batch=batch, device=device, amp=amp) if isinstance(step, TracedStep) else step
    trace = trace_as_run(trace, policy, on_gpu=device.traits.blocks)
    operators, settings = list(trace.steady()), LibrarySettings.of(trace.options)
    if not device.traits.discrete and policy == "library":

        def step_seconds(spec: DeviceSpec) -> tuple[float, ...]:
            return (math.fsum(p.seconds for p in ProcessorPricer(spec.sustained).price_last_step(trace)),)

        return WholeSensitivity(
            of_price(device, ("step",), step_seconds, anew=False, fields=_varied_fields(device)), ()
        )
    shares = cached_shares(operators, device, trace.events)

    def seconds(kernels: Kernels) -> float:
        pricer = Pricer(kernels.spec, kernels.policy, kernels, settings.tf32, settings.release)
        return math.fsum(pricer.price_operator(o, share).seconds for o, share in zip(operators, shares, strict=True))

    return _with_fixed_kernels("step", device, policy, seconds, trace.warnings)


def _with_fixed_kernels(
    name: str, device: DeviceSpec, policy: str, seconds: Callable[[Kernels], float], warnings: Sequence[str] = ()
) -> WholeSensitivity:
    programs: Programs = {}

    def total_seconds(spec: DeviceSpec) -> tuple[float, ...]:
        try:
            return (seconds(_Fixed(spec.sustained, policy, programs, device.sustained)),)
        except RollerError:  # a program that does not fit the changed device
            return (math.inf,)

    found = of_price(device, (name,), total_seconds, anew=False, fields=_varied_fields(device))
    notes = unit_notes([expr for expr, _ in programs], device, ours=policy == "roller")
    return WholeSensitivity(found, (*warnings, *notes))


def sensitivity_of_model(
    model: str | Path | bytes,
    device: DeviceSpec,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    policy: str = "roller",
) -> WholeSensitivity:
    """Return the sensitivity of the time of an ONNX model's kernels to the numbers of a device."""
    from collections import Counter

    from roller.models.compile import partitioned, read
    from roller.models.graph.steps import runs_of

    check_policy(policy)
    program = partitioned(read(model, batch=batch, shapes=shapes))
    runs = Counter(run.kernel for run in runs_of(program.steps))
    uses = {key: (program.kernels[key].expression, n) for key, n in runs.items()}

    def seconds(kernels: Kernels) -> float:
        return math.fsum(kernels.price_expression(expr).repeated(n).seconds for expr, n in uses.values())

    return _with_fixed_kernels(program.name, device, policy, seconds)
