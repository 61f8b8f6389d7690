"""Co-schedules a program by predictions of its kernels, constructed for the whole device and for a share of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from roller.errors import NoCandidateError
from roller.hardware import DeviceSpec
from roller.models.graph.concurrent_sections import LEAST_GAIN, CoscheduleResult, LaneCosts, schedule_sections
from roller.models.graph.recurrent_pipeline_chunks import chunked_variants
from roller.models.graph.step_dependencies import Dependencies
from roller.perf.estimate import Estimate
from roller.templates.common.options import ConstructOptions
from roller_runtime.plan.program_steps import KernelSource, Program, Run

#: Numbers of streams to try on a device that is not a CPU; each stream has an equal share of the units.
_STREAMS = (2, 4)
#: Predicts kernels for a number of units (``None`` for all); the result lacks kernels for which no program fits.
Predict = Callable[[Mapping[str, KernelSource], int | None], Mapping[str, Estimate]]


def coschedule_program(program: Program, spec: DeviceSpec, predict: Predict | None = None) -> CoscheduleResult:
    """Return a program whose independent small kernels run concurrently if that is predicted to be faster."""
    predict = predict or make_predictor(spec)
    known: dict[str, Estimate] = {}
    # Kernels that wait for a whole sequence are cut into chunks so that others can run meanwhile.
    variants = chunked_variants(program) if spec.units > 1 else []
    if spec.units < 2 or not (variants or concurrent_kernels(program)):
        return _serial_result(program, known)
    best = _coschedule_at_best_division(program, spec, predict, known)
    serial_s = best.serial_s
    for variant in variants:
        found = _coschedule_at_best_division(variant, spec, predict, known)
        # A variant must have sections and gain more than the error of predictions.
        best = found if found.sections and found.together_s < (1.0 - LEAST_GAIN) * best.together_s else best
    return replace(best, serial_s=serial_s)


def _coschedule_at_best_division(
    program: Program, spec: DeviceSpec, predict: Predict, known: dict[str, Estimate]
) -> CoscheduleResult:
    """Return the result of the best division of the device for a program; add new predictions to ``known``."""
    missing = {k: s for k, s in program.kernels.items() if k not in known}
    known |= predict(missing, None) if missing else {}
    if not program.kernels.keys() <= known.keys():
        return _serial_result(program, known)  # the compilation reports kernels for which no program fits
    shared = {k: program.kernels[k] for k in sorted(concurrent_kernels(program))}
    outcomes = [
        schedule_sections(program, coscheduling_costs(known, predict(shared, u), spec, n, u))
        for n, u in lane_and_unit_counts_to_try(spec)
    ]
    return min(outcomes, key=lambda o: o.together_s)


def make_predictor(spec: DeviceSpec) -> Predict:
    """Return a function that predicts kernels by constructing the best program of each."""
    from roller.construction.constructor import construct_candidates

    def predict(sources: Mapping[str, KernelSource], units: int | None) -> dict[str, Estimate]:
        found = {}
        for key, source in sources.items():
            own = ConstructOptions(top_k=1, constants=source.constants, units=units)
            try:
                found[key] = construct_candidates(source.expression, spec, own)[0].estimate
            except NoCandidateError:
                continue
        return found

    return predict


def coscheduling_costs(
    whole: Mapping[str, Estimate], share: Mapping[str, Estimate], spec: DeviceSpec, lanes: int, units: int
) -> LaneCosts:
    """Return co-scheduling costs from estimates on the ``whole`` device and on one lane's ``share`` of the units."""
    caches = [layer.kept_bytes for layer in spec.memory_layers[:-1] if layer.scope == "device"]
    hot = spec.traits.keeps_caches and caches
    common = ["dram_s", *(f"{layer.name}_s" for layer in spec.memory_layers if layer.scope == "device")]
    return LaneCosts(
        {k: e.seconds for k, e in whole.items()},
        {k: e.seconds for k, e in share.items()},
        spec.execution.fork_s if spec.execution.fork_s is not None else spec.execution.launch_s,
        lanes,
        units,
        {k: max((e.terms.get(name, 0.0) for name in common), default=0.0) for k, e in whole.items()},
        spec.memory_layers[-1].bandwidth_bytes_per_s / 2,
        caches[-1] if hot else math.inf,
        spec.memory_layers[-1].bandwidth_bytes_per_s,
        spec.accuracy.ranking_error or LEAST_GAIN,
        *(_unit_cache_bytes_and_saved_s(spec, units) if hot else ()),
    )


def _unit_cache_bytes_and_saved_s(spec: DeviceSpec, units: int) -> tuple[float, tuple[float, float]]:
    """Return how many bytes of constants a unit caches, and the seconds saved per byte: on the device and in a lane."""
    own = [n for n, layer in enumerate(spec.memory_layers) if layer.scope == "unit"][-1]
    saved = []
    for part in (spec, spec.share(units)):
        near, far = (part.memory_layers[n].bandwidth_bytes_per_s for n in (own, own + 1))
        saved.append(max(0.0, 1.0 / far - 1.0 / near))
    return spec.memory_layers[own].kept_bytes, (saved[0], saved[1])


def concurrent_kernels(program: Program) -> set[str]:
    """Return the kernels that can run concurrently with another step; others do not need a prediction for a share."""
    # A step can move between its earliest and latest position on the critical path; a step is alone if no other step's
    # positions overlap these.
    graph = Dependencies.of(program.steps)
    weight = [int(isinstance(s, Run)) for s in program.steps]
    earliest = [0] * len(weight)
    for i, before in enumerate(graph.before):
        earliest[i] = max((earliest[j] + weight[j] for j in before), default=0)
    length = max((e + w for e, w in zip(earliest, weight, strict=True)), default=0)
    latest = [length] * len(weight)
    for i in reversed(range(len(weight))):
        latest[i] = min((latest[j] for j in graph.after[i]), default=length) - weight[i]
    runs = [i for i, w in enumerate(weight) if w]
    crowd = _prefix_sums(length, ((earliest[i], latest[i]) for i in runs))
    found = set()
    for i in runs:
        step = program.steps[i]
        if isinstance(step, Run) and crowd[latest[i] + 1] - crowd[earliest[i]] > latest[i] + 1 - earliest[i]:
            found.add(step.kernel)
    return found


def _prefix_sums(length: int, places: Iterable[tuple[int, int]]) -> list[int]:
    """Return the prefix sums of the number of steps that could run at each position."""
    change = [0] * (length + 2)
    for first, last in places:
        change[first] += 1
        change[last + 1] -= 1
    out, here = [0], 0
    for place in range(length + 1):
        here += change[place]
        out.append(out[-1] + here)
    return out


def lane_and_unit_counts_to_try(spec: DeviceSpec) -> list[tuple[int, int]]:
    """Return the divisions of a device to try, as (lanes, units per lane)."""
    if spec.execution.fork_s is not None:
        return [(spec.units, 1)]  # threads cannot start threads within a lane: a CPU's lane is one core
    return [(n, spec.units // n) for n in _STREAMS if spec.units >= n]


def _serial_result(program: Program, known: Mapping[str, Estimate]) -> CoscheduleResult:
    keys = [s.kernel for s in program.steps if isinstance(s, Run)]
    seconds = sum(known[k].seconds for k in keys if k in known)
    return CoscheduleResult(program, seconds, seconds)
