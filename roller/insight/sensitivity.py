"""Sensitivity of a model's or training step's time to the parameters of a device, with fixed kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roller.errors import RollerError
from roller.explanation.sensitivity import Sensitivity, sensitivity_of_pricer
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.hardware.sections import NOT_OF_KERNELS
from roller.insight.cost.compiled import apply_policy_to_trace
from roller.insight.cost.cpu import ProcessorPricer
from roller.insight.cost.kernel_prices import KernelPrice, KernelPricer
from roller.insight.cost.library_settings import LibrarySettings
from roller.insight.cost.operator_price import Pricer, check_policy_is_known
from roller.insight.cost.traffic_saved_by_shared_cache import cached_byte_shares
from roller.insight.trace.trace import Trace
from roller.insight.traced_step import TracedStep
from roller.perf.estimate import Estimate
from roller.perf.matrix_unit_notes import notes_on_matrix_unit
from roller.templates.common.options import ConstructOptions

#: Function that estimates one kernel on any device.
Program = Callable[[DeviceSpec], Estimate]
#: Maps an expression and a library to the program chosen on the base device; ``None`` if no program fits that device.
Programs = dict[tuple[TensorExpr, str], Program | None]


@dataclass(frozen=True)
class WholeSensitivity:
    """The sensitivity of a model's or step's time to a device's parameters, and notes on the prices."""

    sensitivity: Sensitivity
    notes: tuple[str, ...]


class _FixedProgramKernels(KernelPricer):
    """Prices kernels on any device with the programs that were chosen for a base device."""

    def __init__(self, spec: DeviceSpec, policy: str, programs: Programs, base: DeviceSpec) -> None:
        super().__init__(spec, policy)
        self._programs, self._base = programs, base

    def _price_by_model(self, expr: TensorExpr, library: str) -> KernelPrice:
        key = expr, library
        if key not in self._programs:
            self._programs[key] = _estimator_of_chosen_program(expr, self._base, self.policy, library)
        program = self._programs[key]
        if program is None:  # priced by its bytes, on every device
            return super()._price_by_model(expr, library)
        return self._price_from_estimate(program(self.spec), "library" if self.policy == "library" else "construct")


def _estimator_of_chosen_program(expr: TensorExpr, spec: DeviceSpec, policy: str, library: str) -> Program | None:
    """Return an estimator, for any device, of the program chosen for ``spec``; ``None`` if no program fits ``spec``."""
    from roller.construction.constructor import construct_candidates
    from roller.construction.library_pricing import library_program_pricer
    from roller.construction.parse_program_names import estimate_named_program

    try:
        if policy == "library" and spec.traits.blocks:
            return library_program_pricer(expr, spec, library)
        program = construct_candidates(expr, spec, ConstructOptions())[0].program
    except RollerError:
        return None
    return lambda other: estimate_named_program(program, other)


def _fields_to_vary(spec: DeviceSpec) -> list[str]:
    return [path for path in spec.values() if path not in NOT_OF_KERNELS or not spec.traits.discrete]


def sensitivity_of_step(
    step: TracedStep | Trace,
    device: DeviceSpec,
    *,
    batch: int | None = None,
    amp: str | None = None,
    policy: str = "library",
) -> WholeSensitivity:
    """Return the sensitivity of a training step's device time to the parameters of a device."""
    check_policy_is_known(policy)
    trace = step.at(batch=batch, device=device, amp=amp) if isinstance(step, TracedStep) else step
    trace = apply_policy_to_trace(trace, policy, on_gpu=device.traits.blocks)
    operators, settings = list(trace.steady()), LibrarySettings.of(trace.options)
    if not device.traits.discrete and policy == "library":

        def step_seconds(spec: DeviceSpec) -> tuple[float, ...]:
            return (math.fsum(p.seconds for p in ProcessorPricer(spec.sustained).price_last_step(trace)),)

        return WholeSensitivity(
            sensitivity_of_pricer(device, ("step",), step_seconds, anew=False, fields=_fields_to_vary(device)), ()
        )
    shares = cached_byte_shares(operators, device, trace.events)

    def seconds_with_kernels(kernels: KernelPricer) -> float:
        pricer = Pricer(kernels.spec, kernels.policy, kernels, settings.tf32, settings.release)
        return math.fsum(pricer.price_operator(o, share).seconds for o, share in zip(operators, shares, strict=True))

    return _sensitivity_with_fixed_programs("step", device, policy, seconds_with_kernels, trace.warnings)


def _sensitivity_with_fixed_programs(
    name: str,
    device: DeviceSpec,
    policy: str,
    seconds_with_kernels: Callable[[KernelPricer], float],
    warnings: Sequence[str] = (),
) -> WholeSensitivity:
    programs: Programs = {}

    def total_seconds(spec: DeviceSpec) -> tuple[float, ...]:
        try:
            return (seconds_with_kernels(_FixedProgramKernels(spec.sustained, policy, programs, device.sustained)),)
        except RollerError:  # a program that does not fit the changed device
            return (math.inf,)

    found = sensitivity_of_pricer(device, (name,), total_seconds, anew=False, fields=_fields_to_vary(device))
    notes = notes_on_matrix_unit([expr for expr, _ in programs], device, ours=policy == "roller")
    return WholeSensitivity(found, (*warnings, *notes))


def sensitivity_of_model(
    model: str | Path | bytes,
    device: DeviceSpec,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    policy: str = "roller",
) -> WholeSensitivity:
    """Return the sensitivity of the total time of an ONNX model's kernels to the parameters of a device."""
    from collections import Counter

    from roller.models.compile import partition_graph, read_folded_graph
    from roller_runtime.plan.program_steps import iterate_kernel_runs

    check_policy_is_known(policy)
    program = partition_graph(read_folded_graph(model, batch=batch, shapes=shapes))
    runs = Counter(run.kernel for run in iterate_kernel_runs(program.steps))
    uses = {key: (program.kernels[key].expression, n) for key, n in runs.items()}

    def seconds_with_kernels(kernels: KernelPricer) -> float:
        return math.fsum(kernels.price_expression(expr).multiply_by_count(n).seconds for expr, n in uses.values())

    return _sensitivity_with_fixed_programs(program.name, device, policy, seconds_with_kernels)
