"""Changes that a profile has already: asked for again they change nothing, and why is said.

Each function returns why, and ``""`` where the change is not in place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Protocol

from roller.errors import RollerError
from roller.insight.cost.host_costs import load_host_costs
from roller.insight.step.graph import StepGraph
from roller.insight.whatif.optimizer_bytes import UNFUSED, kinds_of
from roller.insight.whatif.select import by_iteration, total_us, transfers, work
from roller.insight.whatif.task_prices import TaskPrices, is_16_bits

#: Share of a profile's work that has a change already, from which on the change is in place.
MOSTLY = 0.5
#: Operators and kernels that update many parameters at once, in several passes and in one.
_GROUPED, _FUSED = (
    re.compile(r"_foreach_|_fused_|multi_tensor_|Fused"),
    re.compile(r"_fused_|Fused|multi_tensor_\w*<.*(Adam|Lamb|SGD|Adagrad)\w*Functor"),
)
#: The iterator of PyTorch's loader that takes batches from worker processes.
_FROM_WORKERS = "MultiProcessing"
#: A batch that takes so many times as long as one that is ready was waited for.
_WAITED = 2.0
#: What kernels of PyTorch's compiler are called, which fuses chains.
COMPILED = "triton_"
#: Reductions of communication libraries, by what they call them.
_REDUCES = re.compile(r"all_?reduce|reduce_?scatter", re.I)


def captured(graph: StepGraph) -> str:
    """Return why a captured graph is in place: most tasks are launched by calls that launch several."""
    share = graph.captured_share
    return f"{100 * share:.0f} % of the device's tasks are launched by captured graphs." if share >= MOSTLY else ""


def fused_update(graph: StepGraph) -> str:
    """Return why a fused optimizer is in place: by its name, or as the update has no more kernels than one has."""
    named = [name for name in graph.optimizers if name.startswith("Fused")]
    if named or _share(graph, _FUSED) >= MOSTLY:
        return f"The update runs {named[0] if named else 'fused kernels'}."
    steps = by_iteration(graph, work(graph, "optimizer"))
    is_adam = kinds_of(graph)[:1] in (("adam",), ("adamw",))
    least = UNFUSED[kinds_of(graph)[0]][0] if is_adam else 2
    most = max((len(own) for own in steps.values()), default=0)
    if not 0 < most < least:
        return ""
    return f"The update of a step has {most} kernel{'s' if most > 1 else ''}, no more than a fused one."


def grouped_update(graph: StepGraph) -> str:
    """Return why an optimizer that groups parameters is in place."""
    return "The update works on many parameters at once." if _share(graph, _GROUPED) >= MOSTLY else ""


def _share(graph: StepGraph, pattern: re.Pattern[str]) -> float:
    """Return the share of the update in tasks whose name, or operator's name, matches."""
    update = work(graph, "optimizer")
    found = [n for n in update if pattern.search(f"{graph.tasks[n].context.operator} {graph.tasks[n].name}")]
    whole = total_us(graph, update)
    return total_us(graph, found) / whole if whole else 0.0


def optimizer(graph: StepGraph, to: str, of: str) -> str:
    """Return why another optimizer is the one of the profile.

    Raises
    ------
    RollerError
        The profile marks the steps of another optimizer than ``of``.
    """
    known = kinds_of(graph)
    if to in known or (to == of and not known):
        return f"The profile's optimizer is {', '.join(graph.optimizers) or of}."
    if known and of not in known:
        raise RollerError(
            f"{graph.name}: OtherOptimizer: of: expected {' or '.join(known)}, as the profile's "
            f"{', '.join(graph.optimizers)}, got {of}. Name that."
        )
    return ""


def half_precision(graph: StepGraph) -> str:
    """Return why mixed precision is in place: most time of products, or of all where none counts, is in 16 bits."""
    prices = TaskPrices(graph)
    every = [graph.tasks[n] for n in work(graph, "forward", "backward")]
    products = [t for t in every if prices.bound(t) == "compute"] or every
    whole, short = total_us(graph, [t.id for t in products]), [t.id for t in products if is_16_bits(t)]
    if not whole or total_us(graph, short) < MOSTLY * whole:
        return ""
    return f"{100 * total_us(graph, short) / whole:.0f} % of the time of what is computed is in 16 bits."


def compiled(graph: StepGraph) -> str:
    """Return why fused chains are in place: a compiler made most of what is bound by memory."""
    prices = TaskPrices(graph)
    bound = [n for n in work(graph, "forward", "backward") if prices.bound(graph.tasks[n]) == "memory"]
    fused, whole = [n for n in bound if COMPILED in graph.tasks[n].name], total_us(graph, bound)
    if not fused or total_us(graph, fused) < MOSTLY * whole:
        return ""
    return f"{100 * total_us(graph, fused) / whole:.0f} % of the time of what is bound by memory is in fused kernels."


def workers(graph: StepGraph, loads: Sequence[int], asked: int, of: int | None) -> str:
    """Return why loader workers are in place, where more bring nothing or the profile's number is not named.

    Raises
    ------
    RollerError
        The profile shows no loading; ``of`` is named where no workers load; or fewer are asked for than it had, and
        what one takes is unknown.
    """
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
    if total_us(graph, loads) > _WAITED * load_host_costs().fetch_us * len(loads):
        return ""
    if asked > of:
        return "The training does not wait for its workers."
    raise RollerError(
        f"{graph.name}: LoaderWorkers: workers: expected at least the {of} of the profile, got {asked}: how long a "
        f"worker takes for a batch is not in it, as the training does not wait for one. Ask for more."
    )


class _Parallel(Protocol):
    @property
    def devices(self) -> int:
        """How many there are."""
        ...


def reduced(change: _Parallel, graph: StepGraph) -> str:
    """Return why data parallelism is in place: the profile is of one rank of as many.

    Raises
    ------
    RollerError
        The profile's gradients are reduced already, over another number of devices or an unknown one.
    """
    found: Collection[int] = [n for n in transfers(graph) if _REDUCES.search(graph.tasks[n].name)
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
