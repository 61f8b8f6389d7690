"""Packs: the steps of a plan that are one launch each, and what they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from roller.artifact import KernelArtifact
from roller.errors import ModelError
from roller.horizontal import HorizontalKernel
from roller.models.graph.steps import Run, Step, Together


def pack_key(pack: Together) -> str:
    """Return the key of the packed kernel that runs a pack: those of its kernels, however often each runs.

    Examples
    --------
    >>> pack_key(Together(tuple((Run("", k, ("x",), ("y",)),) for k in "bab"), packed=True))
    'a+b'
    """
    return "+".join(sorted(counts_of(pack)))


def pack_name(pack: Together) -> str:
    """Return what predictions of a pack are kept under: its kernels, and how often each runs.

    Examples
    --------
    >>> pack_name(Together(tuple((Run("", k, ("x",), ("y",)),) for k in "bab"), packed=True))
    '1*a+2*b'
    """
    return "+".join(f"{count}*{key}" for key, count in sorted(counts_of(pack).items()))


def counts_of(pack: Together) -> Counter[str]:
    """Return how often each kernel runs in a pack."""
    return Counter(run.kernel for run in runs_of_pack(pack))


def runs_of_pack(pack: Together) -> tuple[Run, ...]:
    """Return the kernels of a pack, one per lane."""
    runs = tuple(s for lane in pack.lanes for s in lane if isinstance(s, Run))
    if len(runs) != len(pack.lanes) or any(len(lane) != 1 for lane in pack.lanes):
        raise ModelError("a plan: expected a pack of one kernel per lane, got other steps. Compile the model again.")
    return runs


def packs_of(steps: Iterable[Step]) -> list[Together]:
    """Return the steps that are packs."""
    return [s for s in steps if isinstance(s, Together) and s.packed]


def launches_of(
    steps: Iterable[Step], artifacts: Mapping[str, KernelArtifact], packs: Mapping[str, HorizontalKernel]
) -> int:
    """Return how many kernels a call launches, packing of constants aside."""
    count = 0
    for step in steps:
        if isinstance(step, Run):
            count += len(artifacts[step.kernel].launches)
        elif isinstance(step, Together):
            inner = (s for lane in step.lanes for s in lane)
            if not step.packed:
                count += launches_of(inner, artifacts, packs)
                continue
            counts = counts_of(step)
            count += sum(stage.runs(counts) for stage in packs[pack_key(step)].stages)
    return count


def check_packs(name: str, steps: Iterable[Step], packs: Mapping[str, HorizontalKernel]) -> None:
    """Refuse a plan one of whose packs has no kernel with room for it."""
    for pack in packs_of(steps):
        kernel = packs.get(pack_key(pack))
        if kernel is None or any(n > kernel.capacity.get(key, 0) for key, n in counts_of(pack).items()):
            raise ModelError(
                f"{name}: expected a packed kernel with room for {pack_name(pack)}, got none. Compile it again."
            )
