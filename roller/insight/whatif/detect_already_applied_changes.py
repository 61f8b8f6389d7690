"""Detects changes that a profile already contains."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Protocol

from roller.errors import RollerError
from roller.insight.cost.host_costs import load_host_costs
from roller.insight.step.graph import StepGraph
from roller.insight.whatif.optimizer_bytes import UNFUSED, possible_optimizers
from roller.insight.whatif.price_changed_tasks import TaskPrices, uses_16_bit_floats
from roller.insight.whatif.recomputed_tasks import is_block_recomputed
from roller.insight.whatif.task_selection import compute_tasks, network_tasks, tasks_by_step, total_duration_us

#: Smallest share of a profile's work with a change for which the change counts as in place.
MOSTLY = 0.5
#: Patterns of operators and kernels that update many parameters at once, and of those that do so in one fused pass.
_GROUPED, _FUSED = (
    re.compile(r"_foreach_|_fused_|multi_tensor_|Fused"),
    re.compile(r"_fused_|Fused|multi_tensor_\w*<.*(Adam|Lamb|SGD|Adagrad)\w*Functor"),
)
#: The iterator of PyTorch's loader that takes batches from worker processes.
_FROM_WORKERS = "MultiProcessing"
#: Time to fetch a batch, relative to the time for a ready batch, above which the training waited for a worker.
_WAITED = 2.0
#: Prefix of kernels that PyTorch's compiler generates.
COMPILED = "triton_"
#: Pattern of reductions in communication libraries.
_REDUCES = re.compile(r"all_?reduce|reduce_?scatter", re.I)


def captured_graph_reason(graph: StepGraph) -> str:
    """Return the reason if captured graphs launch most tasks; otherwise ``""``."""
    share = graph.captured_share
    return f"{100 * share:.0f} % of the device's tasks are launched by captured graphs." if share >= MOSTLY else ""


def fused_optimizer_reason(graph: StepGraph) -> str:
    """Return the reason if the optimizer's name or kernels show that it is fused; otherwise ``""``."""
    named = [name for name in graph.optimizers if name.startswith("Fused")]
    if named or _update_time_share_of_kernels(graph, _FUSED) >= MOSTLY:
        return f"The update runs {named[0] if named else 'fused kernels'}."
    steps = tasks_by_step(graph, compute_tasks(graph, "optimizer"))
    is_adam = possible_optimizers(graph)[:1] in (("adam",), ("adamw",))
    least = UNFUSED[possible_optimizers(graph)[0]][0] if is_adam else 2
    most = max((len(own) for own in steps.values()), default=0)
    if not 0 < most < least:
        return ""
    return f"The update of a step has {most} kernel{'s' if most > 1 else ''}, no more than a fused one."


def foreach_optimizer_reason(graph: StepGraph) -> str:
    """Return the reason if the optimizer updates several parameters per kernel; otherwise ``""``."""
    return (
        "The update works on many parameters at once."
        if _update_time_share_of_kernels(graph, _GROUPED) >= MOSTLY
        else ""
    )


def _update_time_share_of_kernels(graph: StepGraph, pattern: re.Pattern[str]) -> float:
    update = compute_tasks(graph, "optimizer")
    found = [n for n in update if pattern.search(f"{graph.tasks[n].context.operator} {graph.tasks[n].name}")]
    whole = total_duration_us(graph, update)
    return total_duration_us(graph, found) / whole if whole else 0.0


def same_optimizer_reason(graph: StepGraph, to: str, of: str) -> str:
    """Return the reason if the profile's optimizer is ``to``; otherwise ``""``. Raise an error if it is not ``of``."""
    known = possible_optimizers(graph)
    if to in known or (to == of and not known):
        return f"The profile's optimizer is {', '.join(graph.optimizers) or of}."
    if known and of not in known:
        raise RollerError(
            f"{graph.name}: OtherOptimizer: of: expected {' or '.join(known)}, as the profile's "
            f"{', '.join(graph.optimizers)}, got {of}. Name that."
        )
    return ""


def mixed_precision_reason(graph: StepGraph) -> str:
    """Return the reason if most of the time of matrix products is in 16 bits; otherwise ``""``.

    Without matrix products, all kernels are considered.
    """
    prices = TaskPrices(graph)
    every = [graph.tasks[n] for n in compute_tasks(graph, "forward", "backward")]
    products = [t for t in every if prices.limiting_resource(t) == "compute"] or every
    whole, short = total_duration_us(graph, [t.id for t in products]), [t.id for t in products if uses_16_bit_floats(t)]
    if not whole or total_duration_us(graph, short) < MOSTLY * whole:
        return ""
    return f"{100 * total_duration_us(graph, short) / whole:.0f} % of the time of what is computed is in 16 bits."


def fused_pointwise_reason(graph: StepGraph) -> str:
    """Return the reason if generated kernels take most of the time of memory-bound kernels; otherwise ``""``."""
    prices = TaskPrices(graph)
    bound = [
        n for n in compute_tasks(graph, "forward", "backward") if prices.limiting_resource(graph.tasks[n]) == "memory"
    ]
    fused, whole = [n for n in bound if COMPILED in graph.tasks[n].name], total_duration_us(graph, bound)
    if not fused or total_duration_us(graph, fused) < MOSTLY * whole:
        return ""
    share = total_duration_us(graph, fused) / whole
    return f"{100 * share:.0f} % of the time of what is bound by memory is in fused kernels."


def recomputed_blocks_reason(graph: StepGraph, blocks: Sequence[str]) -> str:
    """Return the reason if the backward pass recomputes every block; otherwise ``""``."""
    if not blocks or not all(is_block_recomputed(graph, block) for block in blocks):
        return ""
    return f"The backward runs {'each of the blocks' if len(blocks) > 1 else 'the block'} forward once more."


def loader_workers_reason(graph: StepGraph, loads: Sequence[int], asked: int, of: int | None) -> str:
    """Return the reason if workers load batches and more of them would not help, or ``of`` is unknown; else ``""``."""
    if not loads:
        raise RollerError(
            f"{graph.name}: LoaderWorkers: expected the loading of batches, got a profile that marks none. Load them "
            f"with PyTorch's DataLoader, which is marked, or within record_function('enumerate(batches)')."
        )
    if not all(_FROM_WORKERS in graph.tasks[n].name for n in loads):
        if of is not None:
            raise RollerError(
                f"{graph.name}: LoaderWorkers: of: expected a profile whose batches come from workers, got one that "
                f"loads them on the thread that trains. Leave it out."
            )
        return ""
    if of is None:
        return "Batches come from workers. The profile does not say from how many: name them with of= to ask for more."
    if of == asked:
        return f"Batches come from {of} worker{'s' if of > 1 else ''}."
    if total_duration_us(graph, loads) > _WAITED * load_host_costs().fetch_us * len(loads):
        return ""
    if asked > of:
        return "The training does not wait for its workers."
    raise RollerError(
        f"{graph.name}: LoaderWorkers: workers: expected at least the {of} of the profile, got {asked}: how long a "
        f"worker takes for a batch is not in it, as the training does not wait for one. Ask for more."
    )


class _DataParallelChange(Protocol):
    @property
    def devices(self) -> int: ...


def data_parallel_reason(change: _DataParallelChange, graph: StepGraph) -> str:
    """Return the reason if the profile is from one rank on the same number of devices; otherwise ``""``."""
    found: Collection[int] = [n for n in network_tasks(graph) if _REDUCES.search(graph.tasks[n].name)
                              and graph.tasks[n].provenance == "measured"]  # fmt: skip
    if not found:
        return ""
    if graph.world_size == change.devices:
        return f"The profile is of one of {change.devices} processes, with {len(found)} reductions."
    job = f"of {graph.world_size} processes" if graph.world_size else "of several processes"
    raise RollerError(
        f"{graph.name}: DDP: expected the profile of a device that trains alone, got one of a job {job}, with "
        f"{len(found)} reductions. Record one device alone, or ask for other-network."
    )
