"""Finds sizes of a step's weights whose padding would speed up kernels, as ``roller lint`` does for a model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from roller.expr import TensorExpr
from roller.expr.sizes_growable_by_padding import GrowableSize, growing_sizes
from roller.insight.cost.gpu import operator_launches
from roller.insight.cost.kernel_launch_types import Kernel
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.cost.step_cost import pricer_with_disk_cache
from roller.insight.cost.worthwhile_size_padding import (
    LEAST_SHARE,
    allowed_padded_extents,
    enlarge_sizes,
    paddings_to_common_multiples,
    smallest_worthwhile_padding,
)
from roller.insight.step.graph import StepGraph
from roller.insight.trace.trace import Operator, TensorRecord, Trace
from roller.insight.whatif.primitives import annotate, set_duration

#: Maximum number of weights that the name of a padding lists.
_NAMED = 3
_ASSUMED = (
    "The new elements are zeros and change no result; all weights with these sizes grow together.",
    "Kernels without a weight keep their times, and so do those in which the batch has the same size.",
)


@dataclass(frozen=True)
class PaddedWeights:
    """Graph transform that pads weight sizes with zeros and replaces the times of the affected kernels."""

    sizes: Mapping[int, int]  # maps a size to its padded size
    weights: tuple[str, ...]
    delta_s: Mapping[int, float] = field(repr=False)  # maps a task to the change of its time, in seconds

    def __str__(self) -> str:
        more = f" and {len(self.weights) - _NAMED} more" if len(self.weights) > _NAMED else ""
        sizes = ", ".join(f"{extent} -> {padded}" for extent, padded in sorted(self.sizes.items()))
        return f"pad {sizes} ({', '.join(self.weights[:_NAMED])}{more})"

    def __call__(self, graph: StepGraph, /) -> StepGraph:
        """Return the graph of the padded step."""
        made = set_duration(
            graph, self.delta_s, lambda t: max(0.0, t.duration_us + 1e6 * self.delta_s[t.id]), "predicted"
        )
        return annotate(made, f"{graph.name} + {self}", *_ASSUMED)


@dataclass(frozen=True)
class _PaddableKernel:
    """A kernel of a task, and the kernel's sizes that are also sizes of a weight."""

    task: int
    kernel: Kernel
    sizes: tuple[GrowableSize, ...]
    weights: tuple[tuple[str, frozenset[int]], ...]

    @cached_property
    def key(self) -> tuple[TensorExpr, tuple[GrowableSize, ...]]:
        return self.kernel.expr, self.sizes


def find_weight_paddings(graph: StepGraph, trace: Trace, policy: str = "library") -> tuple[PaddedWeights, ...]:
    """Return weight paddings that speed up kernels with at least 2 % of the step's time."""
    spec = graph.device
    if spec is None or not spec.traits.blocks:
        return ()  # on a CPU the time of a kernel depends on the step around it
    prices = pricer_with_disk_cache(spec, policy).kernels
    sites = list(_paddable_kernels(graph, trace))
    targets = _paddings_of_costly_kernels(graph, sites, prices)
    found = tuple(_padded_weights_with_prices(one, sites, prices) for one in _merge_paddings(targets))
    prices.save()
    return found


def _paddable_kernels(graph: StepGraph, trace: Trace) -> Iterator[_PaddableKernel]:
    names = _weight_names_by_storage(trace)
    for number, operator in graph.operators.items():
        held = [t for t in (*operator.inputs, *operator.outputs) if t.storage in names and t.shape]
        if not held:
            continue
        dims: Counter[int] = Counter()
        for record in held:
            dims |= Counter(record.shape)
        for kernel in (x for x in operator_launches(operator)[0] if isinstance(x, Kernel)):
            grows = growing_sizes(kernel.expr)
            count = Counter(size.extent for size in grows)
            # a size that occurs more often in the kernel than in the weight may be the batch: it is ambiguous
            own = tuple(s for s in grows if count[s.extent] == dims[s.extent] and allowed_padded_extents(s.extent))
            if own:
                yield _PaddableKernel(number, kernel, own, tuple((names[t.storage], frozenset(t.shape)) for t in held))


def _weight_names_by_storage(trace: Trace) -> dict[int, str]:
    """Return parameter names by storage, including the storages of gradients and of casts of both."""
    names = {n: s.name for n, s in trace.storages.items() if s.kind in ("parameter", "gradient") and s.name}
    alone = [found for operator in trace.operators if (found := _copy_source_and_result(operator)) is not None]
    for source, result in alone:
        if source.storage in names:
            names.setdefault(result.storage, names[source.storage])
    for source, result in reversed(alone):
        if result.storage in names:
            names.setdefault(source.storage, names[result.storage])
    return names


def _copy_source_and_result(operator: Operator) -> tuple[TensorRecord, TensorRecord] | None:
    """Return the input and output of an operator with one of each and equal shapes; otherwise ``None``."""
    if len(operator.inputs) != 1 or len(operator.outputs) != 1:
        return None
    (source,), (result,) = operator.inputs, operator.outputs
    return (source, result) if source.shape == result.shape and source.storage != result.storage else None


def _paddings_of_costly_kernels(
    graph: StepGraph, sites: Sequence[_PaddableKernel], prices: KernelPricer
) -> list[dict[int, int]]:
    seconds: dict[tuple[TensorExpr, tuple[GrowableSize, ...]], float] = defaultdict(float)
    for site in sites:
        seconds[site.key] += site.kernel.count * prices.price_expression(site.kernel.expr).seconds
    whole = sum(task.duration_us for task in graph.tasks if task.on_device) / 1e6
    examined = [key for key, took in seconds.items() if took >= LEAST_SHARE * whole]
    prices.price_expressions_in_parallel(
        enlarge_sizes(expr, extents) for expr, own in examined for extents in paddings_to_common_multiples(own)
    )
    found = [smallest_worthwhile_padding(expr, own, prices) for expr, own in examined]
    return [{size.extent: padded for size, padded in one.items()} for one in found if one]


def _merge_paddings(paddings: Sequence[Mapping[int, int]]) -> list[dict[int, int]]:
    """Merge paddings that share a size; for each size, take the largest padding."""
    groups: list[dict[int, int]] = []
    for one in paddings:
        whole = dict(one)
        for other in [g for g in groups if g.keys() & whole.keys()]:
            groups.remove(other)
            whole = {size: max(whole.get(size, 0), other.get(size, 0)) for size in {**whole, **other}}
        groups.append(whole)
    return groups


def _padded_weights_with_prices(
    sizes: Mapping[int, int], sites: Sequence[_PaddableKernel], prices: KernelPricer
) -> PaddedWeights:
    delta: dict[int, float] = defaultdict(float)
    weights: dict[str, None] = {}
    for site in sites:
        grown = {size: sizes[size.extent] for size in site.sizes if size.extent in sizes}
        if grown:
            expr = site.kernel.expr
            after, before = (prices.price_expression(e).seconds for e in (enlarge_sizes(expr, grown), expr))
            delta[site.task] += site.kernel.count * (after - before)
            weights |= {name: None for name, own in site.weights if own & sizes.keys()}
    return PaddedWeights(dict(sizes), tuple(weights), dict(delta))
