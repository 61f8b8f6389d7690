"""Report of a model's partition: the nodes of each kernel, and the reasons why neighbours were not fused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from roller.models.graph.fuse_parts import UnfusedPair
from roller_runtime.core.display import one_line_repr
from roller_runtime.plan.program_steps import Append, Call, Copy, Foreign, Join, Program, Run, View


@dataclass(frozen=True)
class KernelUse:
    """A kernel, the nodes that it computes at its first use, and the number of its runs."""

    key: str
    nodes: tuple[str, ...]
    runs: int


@dataclass(frozen=True)
class Partition:
    """Partition of a model's nodes into kernels and other steps.

    Parameters
    ----------
    kernels
        Every kernel once, in order of first run.
    steps
        Number of steps by kind.
    cuts
        Pairs of producer and reader that were not fused, with reasons.
    outside
        Nodes that another runtime computes, with reasons, by node name.
    """

    program: Program
    kernels: tuple[KernelUse, ...]
    steps: dict[str, int]
    cuts: tuple[UnfusedPair, ...]
    outside: dict[str, str]

    def __repr__(self) -> str:
        """Return the model and the counts on one line."""
        counted = ", ".join(f"{n} {kind}" for kind, n in self.steps.items())
        return one_line_repr("Partition", f"{self.program.name}: {len(self.kernels)} kernels", counted)

    def __str__(self) -> str:
        """Return counts, kernels, fallback nodes, and unfused pairs grouped by reason, on several lines."""
        counted = ", ".join(f"{n} {kind}" for kind, n in self.steps.items())
        lines = [f"{self.program.name}: {len(self.kernels)} kernels; steps: {counted}"]
        lines += [f"  {k.runs:4d}x {k.key[:8]}  {' + '.join(k.nodes)}" for k in self.kernels]
        lines += [f"  outside: {node}: {why}" for node, why in self.outside.items()]
        reasons = Counter(c.reason for c in self.cuts)
        first = {c.reason: c for c in reversed(self.cuts)}
        lines += [
            f"  cut {n}x ('{first[r].producer}' -> '{first[r].reader}' ...): {r}" for r, n in reasons.most_common()
        ]
        return "\n".join(lines)


def partition_report(program: Program, cuts: tuple[UnfusedPair, ...], outside: dict[str, str]) -> Partition:
    """Return the report of a program."""
    runs = [s for s in program.steps if isinstance(s, Run)]
    times = Counter(s.kernel for s in runs)
    first: dict[str, Run] = {}
    for s in runs:
        first.setdefault(s.kernel, s)
    kernels = tuple(KernelUse(key, s.nodes, times[key]) for key, s in first.items())
    names = {
        Run: "runs",
        View: "views",
        Join: "joins",
        Copy: "copies",
        Append: "appends",
        Call: "calls",
        Foreign: "foreign",
    }
    counted = Counter(names[type(s)] for s in program.steps if type(s) in names)
    return Partition(program, kernels, dict(counted), cuts, outside)
