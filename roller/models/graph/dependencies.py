"""Which step needs which: the graph of a program's steps, and how much memory an order of them needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from roller.models.graph.aliases import resolve
from roller.models.graph.lifetimes import lifetimes, peak_bytes
from roller.models.graph.steps import Program, Step, reads, writes


@dataclass(frozen=True)
class Dependencies:
    """The graph of steps.

    Parameters
    ----------
    before
        Per step the positions of those that write what it reads, each once, ascending.
    after
        Per step the positions of those that read what it writes, each once, ascending.
    """

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Dependencies:
        """Return the graph of steps in a valid order; what nobody writes is there from the start."""
        writer = {name: i for i, step in enumerate(steps) for name in writes(step)}
        before = tuple(tuple(sorted({writer[n] for n in reads(s) if n in writer})) for s in steps)
        after: list[list[int]] = [[] for _ in steps]
        for i, sources in enumerate(before):
            for source in sources:
                after[source].append(i)
        return cls(before, tuple(map(tuple, after)))

    def longest_s(self, seconds: Sequence[float]) -> list[float]:
        """Return per step the seconds of the longest way from its start to the end, ``seconds`` given per step."""
        out = list(seconds)
        for i in reversed(range(len(out))):
            out[i] += max((out[j] for j in self.after[i]), default=0.0)
        return out


def live_bytes(program: Program, steps: Sequence[Step]) -> int:
    """Return the most bytes of values that are needed at the same time where steps run in this order.

    Inputs, outputs and constants have memory of their own and do not count; what one lane of a section alone needs
    lives no longer than it is needed there.
    """
    resolved = resolve(replace(program, steps=tuple(steps)))
    aliases = resolved.aliases
    outside = {aliases.root(name)[0] for name in resolved.outputs.values()}
    lives = lifetimes(resolved.program, lambda name: aliases.root(name)[0])
    values = resolved.program.values
    return peak_bytes((life, values[name].nbytes) for name, life in lives.items() if name not in outside)
