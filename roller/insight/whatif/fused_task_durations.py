"""Durations of fused tasks: those of generated kernels for a traced step, and of chains of neighbours for a profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from roller.insight.cost.compiled import compile_operators
from roller.insight.cost.operator_price import Pricer
from roller.insight.cost.step_cost import pricer_with_disk_cache
from roller.insight.cost.traffic_saved_by_shared_cache import cached_byte_shares
from roller.insight.step.graph import StepGraph
from roller.insight.trace.trace import Operator
from roller.insight.whatif import detect_already_applied_changes
from roller.insight.whatif.price_changed_tasks import TaskPrices
from roller.insight.whatif.task_selection import compute_tasks, neighbouring_kernels, sort_by_start

#: Maps each changed task to its duration in microseconds; ``None`` for a removed task.
Durations = Mapping[int, float | None]


def durations_with_generated_kernels(graph: StepGraph) -> Durations | None:
    """Return durations with the kernels that PyTorch's compiler generates; ``None`` if they are unknown."""
    tasks = sort_by_start(graph, compute_tasks(graph, "forward", "backward"))
    device, known = graph.device, graph.operators
    if device is None or not device.traits.blocks or not tasks or not all(n in known for n in tasks):
        return None
    return _generated_kernel_durations(graph, tasks, pricer_with_disk_cache(device, settings=graph.settings))


def _generated_kernel_durations(graph: StepGraph, tasks: Sequence[int], pricer: Pricer) -> Durations:
    operators = [graph.operators[n] for n in tasks]
    kernels = list(_replacement_kernels(operators, pricer))
    uses = Counter(place for _, of in kernels for place in of)
    own_s = _seconds_per_operator(operators, pricer)
    found: dict[int, float] = {}
    for kernel_s, of in kernels:
        before_s = sum(own_s[place] / uses[place] for place in of)
        before_us = sum(graph.tasks[tasks[place]].duration_us / uses[place] for place in of)
        share = kernel_s / before_s if before_s else 0.0  # a ratio keeps the effect of earlier changes
        last = tasks[max(of)]
        found[last] = found.get(last, 0.0) + share * before_us
    return {tasks[place]: found.get(tasks[place]) for place in uses}


def _seconds_per_operator(operators: Sequence[Operator], pricer: Pricer) -> list[float]:
    shares = cached_byte_shares(operators, pricer.spec)
    return [pricer.price_operator(o, share).seconds for o, share in zip(operators, shares, strict=True)]


def _replacement_kernels(operators: Sequence[Operator], pricer: Pricer) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield the time (s) and the replaced positions of each generated kernel and each partly replaced call."""
    found = compile_operators(operators)
    taken = {place for one in found if one.is_generated for place in one.of}
    for one, seconds in zip(found, _seconds_per_operator([one.operator for one in found], pricer), strict=True):
        if one.is_generated or taken.intersection(one.of):
            yield seconds, one.of


def durations_with_fused_chains(graph: StepGraph, longest: int) -> Durations:
    """Return durations with fused chains of at most ``longest`` memory-bound neighbours in one phase and layer."""
    prices, before = TaskPrices(graph), neighbouring_kernels(graph)[0]
    chains: dict[int, list[int]] = {}
    head_of: dict[int, int] = {}
    for n in sort_by_start(graph, compute_tasks(graph, "forward", "backward")):
        task, previous = graph.tasks[n], before.get(n)
        head = n if previous is None else head_of.get(previous.id, n)
        same = previous is not None and previous.context[:3] == task.context[:3]
        if prices.limiting_resource(task) == "memory" and detect_already_applied_changes.COMPILED not in task.name:
            head_of[n] = head if same and len(chains.get(head, ())) < longest else n
            chains.setdefault(head_of[n], []).append(n)
    found: dict[int, float | None] = {}
    for head, own in chains.items():
        if len(own) > 1:
            found |= {**dict.fromkeys(own[1:]), head: max(graph.tasks[n].duration_us for n in own)}
    return found
