"""Dependency graph of a program's steps, and the peak memory for an order of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from roller.models.graph.lifetimes import peak_bytes, root_lifetimes
from roller.models.graph.memory_aliases import resolve_aliases
from roller_runtime.plan.program_steps import Program, Step, values_read, values_written


@dataclass(frozen=True)
class Dependencies:
    """Dependency graph; ``before`` and ``after`` give each step's predecessors and successors in ascending order."""

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Dependencies:
        """Return the graph of steps in a valid order; values that no step writes exist from the start."""
        writer = {name: i for i, step in enumerate(steps) for name in values_written(step)}
        before = tuple(tuple(sorted({writer[n] for n in values_read(s) if n in writer})) for s in steps)
        after: list[list[int]] = [[] for _ in steps]
        for i, sources in enumerate(before):
            for source in sources:
                after[source].append(i)
        return cls(before, tuple(map(tuple, after)))

    def critical_path_s_from_each_step(self, seconds: Sequence[float]) -> list[float]:
        """Return, for each step, the length of the critical path from its start to the end, in seconds."""
        out = list(seconds)
        for i in reversed(range(len(out))):
            out[i] += max((out[j] for j in self.after[i]), default=0.0)
        return out


def peak_live_bytes(program: Program, steps: Sequence[Step]) -> int:
    """Return the maximum number of bytes live at once in an order of steps, excluding inputs, outputs and constants."""
    resolved = resolve_aliases(replace(program, steps=tuple(steps)))
    aliases = resolved.aliases
    outside = {aliases.root(name)[0] for name in resolved.outputs.values()}
    lives = root_lifetimes(resolved.program, lambda name: aliases.root(name)[0])
    values = resolved.program.values
    return peak_bytes((life, values[name].nbytes) for name, life in lives.items() if name not in outside)
