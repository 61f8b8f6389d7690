"""The profile of a forecast: its simulated graph and its memory, as one tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Protocol

from roller.insight.cost.operator_price import LaunchPrice, Price
from roller.insight.forecast import Forecast
from roller.insight.memory.simulate import Memory
from roller.insight.step.divide_wall_time_among_tasks import wall_time_us
from roller.insight.step.graph import NETWORK_KINDS, StepGraph, Task, TaskContext
from roller.insight.step.simulate import Timeline
from roller.insight.step_profile.node import Node, Seconds
from roller.insight.step_profile.tree_builder import NodeKey, Path, TreeBuilder, tree_path_of_call
from roller.insight.trace.gradient_buckets import buckets, trace_with_bucket_storages
from roller.insight.trace.trace import AllocEvent, Operator, Stack, Storage, Trace

#: Key of the node for the time in which no task runs, i.e. host code between calls.
BETWEEN_CALLS = NodeKey("overhead", "host code between calls")
#: Key of the node for reductions between devices and for gradient buckets.
COMMUNICATION = NodeKey("overhead", "communication")
_STATE_SUFFIX = {"parameter": "", "buffer": "", "gradient": ".grad", "optimizer_state": ".state"}


def tree_of_forecast(trace: Trace, forecast: Forecast) -> Node:
    """Return the tree of a forecast step."""
    tree = TreeBuilder()
    for operator, _ in forecast.step.operators:  # includes views, whose lines belong to the step
        tree.count_call(tree_path_of_operator(operator))
    add_step_times(tree, forecast.graph, forecast.timeline, {o.index: p for o, p in forecast.step.operators})
    whole = trace_with_gradient_buckets(trace, forecast.devices)
    add_memory_to_tree(tree, whole, forecast.memory, frozenset(whole.storages.keys() - trace.storages.keys()))
    return tree.build()


def trace_with_gradient_buckets(trace: Trace, devices: int) -> Trace:
    """Return a trace with its gradient buckets if the step runs on several devices; otherwise return it unchanged."""
    return trace if devices == 1 else trace_with_bucket_storages(trace, buckets(trace))


def tree_path_of_operator(operator: Operator) -> Path:
    """Return the tree path of an operator's node."""
    return tree_path_of_call(operator.stack, operator.module, operator.name)


def add_step_times(tree: TreeBuilder, graph: StepGraph, timeline: Timeline, prices: Mapping[int, Price]) -> None:
    """Add the times of a simulated step to a tree."""
    wall_us, rest_us = wall_time_us(graph, timeline.start_us, timeline.end_us)
    path_of = cache(_tree_path_of_context)
    for task in graph.tasks:
        if task.is_removed:
            continue
        phase, operator = task.context.phase, graph.operators.get(task.id)
        path = path_of(task.context) or (NodeKey("overhead", task.name),)
        if operator is None and (task.on_device or task.kind in NETWORK_KINDS):  # gradient buckets
            path = (COMMUNICATION, NodeKey("kernel", task.name))
        took = Seconds(wall_us[task.id] / 1e6, *_device_and_host_s(task, operator is not None))
        price = None if operator is None else prices.get(operator.index)
        if price is not None and price.launches:
            for row, part in _divide_among_launches(took, price.launches):
                pipes = () if row.work is None else ((row.work.pipe, row.work.at_peak_s),)
                tree.add_time(
                    (*path, NodeKey("kernel", row.name)), phase, part, calls=row.kernels, bound=row.resource,
                    pipes=pipes,
                    error=relative_price_interval(row),
                )  # fmt: skip
        else:
            computes = task.on_device or operator is not None
            leaf = path if path[0].kind == "overhead" else (*path, NodeKey("kernel" if computes else "call", task.name))
            error = None if price is None else relative_price_interval(price)
            tree.add_time(leaf, phase, took, bound=task.resource if computes else "", error=error)
    lags_us = math.fsum(d.lag_us for d in graph.dependencies if d.kind == "thread")
    if rest_us or lags_us:
        tree.add_time((BETWEEN_CALLS,), "other", Seconds(rest_us / 1e6, 0.0, lags_us / 1e6), calls=0)


class _TimeWithInterval(Protocol):
    @property
    def seconds(self) -> float: ...
    @property
    def lower(self) -> float | None: ...
    @property
    def upper(self) -> float | None: ...


def relative_price_interval(price: _TimeWithInterval) -> tuple[float, float] | None:
    """Return the ends of a price's interval divided by its seconds; ``None`` for 0 s or an unknown error."""
    if price.lower is None or price.upper is None or price.seconds <= 0:
        return None
    return price.lower / price.seconds, price.upper / price.seconds


def _tree_path_of_context(context: TaskContext) -> Path:
    return tree_path_of_call(context.stack, context.module, context.operator)


def _device_and_host_s(task: Task, is_operator: bool) -> tuple[float, float]:
    took_s = task.duration_us / 1e6
    return (took_s, 0.0) if task.on_device or is_operator else (0.0, took_s)


def _divide_among_launches(took: Seconds, launches: tuple[LaunchPrice, ...]) -> Iterator[tuple[LaunchPrice, Seconds]]:
    """Divide the time of an operator among its launches in proportion to their prices."""
    whole = math.fsum(row.seconds for row in launches)
    for row in launches:
        share = row.seconds / whole if whole else 1.0 / len(launches)
        yield row, Seconds(*(share * part for part in took))


def add_memory_to_tree(
    tree: TreeBuilder, trace: Trace, memory: Memory, bucket_storages: frozenset[int] = frozenset()
) -> None:
    """Add to a tree the bytes at the peak of total memory and the bytes that the last step requests."""
    # named storages belong to the module of their parameter, others to the operator that allocates them
    place = _StorageNodes(tree, trace, bucket_storages)
    for number, event in memory.held.items():
        place.add(number, event, held=event.size_bytes)
    first = trace.iterations[-2] if len(trace.iterations) > 1 else 0
    for request in trace.events:
        if isinstance(request, AllocEvent) and request.operator >= first:
            place.add(request.storage, request, requested=request.size_bytes)
    parts = memory.parts_at_peak()
    for name, size in (
        ("rounding", parts.rounding_bytes), ("cached", parts.cached_bytes), ("context", parts.context_bytes),
        ("page_rounding", parts.page_rounding_bytes),
    ):  # fmt: skip
        if size:
            tree.add_bytes((NodeKey("overhead", "memory of no tensor"),), name, held=size, tensors=0)


class _StorageNodes:
    def __init__(self, tree: TreeBuilder, trace: Trace, bucket_storages: frozenset[int]) -> None:
        self.tree, self.trace, self._bucket_storages = tree, trace, bucket_storages
        self._path_of: Callable[[Stack, str, str], Path] = cache(tree_path_of_call)

    def add(self, number: int, event: AllocEvent, *, held: int = 0, requested: int = 0) -> None:
        storage = self.trace.storages.get(number, Storage("workspace" if number < 0 else "unknown"))
        if number in self._bucket_storages:
            self.tree.add_bytes((COMMUNICATION,), storage.kind, name="buckets", held=held, requested=requested)
            return
        suffix = _STATE_SUFFIX.get(storage.kind)
        if storage.name and suffix is not None:
            module, _, name = storage.name.rpartition(".")
            lines = tuple(f"{f.file}:{f.line}" for f in self.trace.registered.get(storage.name, ()))
            self.tree.add_bytes(
                self.tree.tree_path_of_module(module), storage.kind, name=name + suffix, held=held, requested=requested,
                registered=lines if storage.kind == "parameter" else (),
            )  # fmt: skip
            return
        path: Path = ()
        if number >= 0 and 0 <= event.operator < len(self.trace.operators):
            maker = self.trace.operators[event.operator]
            path = self._path_of(maker.stack, maker.module, maker.name)
        self.tree.add_bytes(path, storage.kind, held=held, requested=requested)
