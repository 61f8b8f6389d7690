"""Packing: which independent kernels of a GPU become one launch, decided from predictions.

Where a model is thousands of kernels of a few microseconds, starting them is most of its time. Steps are taken in
*ticks*: all that are ready at the same time, of which those that gain by it share a launch; the next tick is what they
made ready. So a wave of a recurrent network's cells is a launch or two, however many cells it has.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from roller.models.graph.dependencies import Dependencies, live_bytes
from roller.models.graph.side_by_side import AHEAD, most_live_bytes, share_key
from roller.models.graph.steps import Copy, KernelSource, Program, Run, Step, Together

#: Kernels of one pack: every one more is code that all of its blocks make room for.
MOST_KINDS = 6


@dataclass(frozen=True)
class Kind:
    """What a kernel takes, as packs count it.

    Parameters
    ----------
    body_s
        Predicted seconds without those to start it.
    launches
        Launches that wait for each other.
    blocks
        Of all launches together, those of the largest.
    threads, registers, scratchpad_bytes
        Of a block, a thread, a block.
    waves
        In which its blocks run where it has its units to itself.
    busy_s
        Seconds for which it keeps each pipe of the whole device busy (arithmetic, copies into the scratchpad).
    shared_s
        Seconds for which it keeps what all units share busy (memory, common caches).
    """

    body_s: float
    launches: int
    blocks: float
    threads: float
    registers: float
    scratchpad_bytes: float
    waves: float = 1.0
    busy_s: tuple[float, ...] = ()
    shared_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Machine:
    """What a GPU gives a launch: units, their limits, and the seconds to start one.

    ``shared_reserved_bytes`` is what the system takes of every block's scratchpad; ``warp`` threads are allocated at a
    time.
    """

    units: int
    launch_s: float
    blocks_per_unit: int
    threads_per_unit: int
    registers_per_unit: int
    shared_bytes: int
    shared_reserved_bytes: int
    warp: int

    def resident(self, kinds: Iterable[Kind]) -> int:
        """Return how many blocks of a pack of these kernels fit a unit; 0 where not one does."""
        found = list(kinds)
        threads = -(-max(int(k.threads) for k in found) // self.warp) * self.warp
        registers, scratchpad = max(int(k.registers) for k in found), max(int(k.scratchpad_bytes) for k in found)
        most = min(self.blocks_per_unit, self.threads_per_unit // threads)
        if registers:
            most = min(most, self.registers_per_unit // (registers * threads))
        return min(most, self.shared_bytes // (scratchpad + self.shared_reserved_bytes)) if scratchpad else most

    def price(self, counts: Mapping[str, int], kinds: Mapping[str, Kind], beside: Iterable[str] = ()) -> float:
        """Return the predicted seconds of a pack; infinite where it cannot run.

        It takes as long as the slowest of its kernels, the slots their blocks take, and every resource that they
        share.
        """
        mine = [(n, kinds[key]) for key, n in counts.items() if n]
        resident = self.resident([*(kind for _, kind in mine), *(kinds[key] for key in beside)])
        if not resident:
            return math.inf
        slots = sum(n * k.blocks * k.body_s / max(1.0, k.waves) for n, k in mine) / (resident * self.units)
        pipes: list[float] = [sum(n * s for (n, _), s in zip(mine, row, strict=True))
                 for row in zip(*((*k.busy_s, *k.shared_s) for _, k in mine), strict=True)]  # fmt: skip
        body = max(max(k.body_s for _, k in mine), slots, *pipes)
        return max(k.launches for _, k in mine) * self.launch_s + body


@dataclass(frozen=True)
class PackCosts:
    """What packing has to know of a program's kernels.

    Parameters
    ----------
    machine
        Of the device.
    kinds
        By kernel key; kernels that are not named stay alone.
    whole_s
        Predicted seconds of kernels on the whole device, by key.
    units
        Units that kernels in packs are constructed for; all of them when ``None``.
    bytes_per_s
        Of copies.
    """

    machine: Machine
    kinds: Mapping[str, Kind]
    whole_s: Mapping[str, float]
    units: int | None = None
    bytes_per_s: float = math.inf

    def alone(self, step: Step) -> float:
        """Return the seconds of a step that has the device to itself."""
        if isinstance(step, Copy):
            return step.rows * step.row_bytes / self.bytes_per_s
        return self.whole_s.get(step.kernel, 0.0) if isinstance(step, Run) else 0.0


@dataclass(frozen=True)
class Packing:
    """A program with packs.

    Parameters
    ----------
    program
        The very program that was given where no pack gains.
    seconds
        Predicted seconds of it.
    packs, runs
        Packs, and kernels that run in them.
    """

    program: Program
    seconds: float
    packs: int = 0
    runs: int = 0


def packed(program: Program, costs: PackCosts) -> Packing:
    """Return the program with independent kernels in common launches wherever that is predicted to be faster.

    Takes O(n log n) for n steps, few of them ready at a time. Steps change their order only where the new order needs
    about as much memory.
    """
    most = most_live_bytes(program)
    for ahead in AHEAD:
        made = _Ticks(program, costs, ahead)
        made.run()
        packs = [s for s in made.out if isinstance(s, Together)]
        if not packs:
            break
        if live_bytes(program, made.out) <= most:
            found = replace(program, steps=tuple(made.out), kernels=_kernels(program, made.out, costs))
            return Packing(found, made.seconds, len(packs), sum(len(p.lanes) for p in packs))
    return Packing(program, sum(costs.alone(s) for s in program.steps))


def _kernels(program: Program, steps: Sequence[Step], costs: PackCosts) -> dict[str, KernelSource]:
    """Return the kernels that the steps need, those for a share of the units among them."""
    every = dict(program.kernels)
    if costs.units is not None:
        shares = ((share_key(k, costs.units), replace(s, units=costs.units)) for k, s in program.kernels.items())
        every |= dict(shares)
    lanes = (lane for s in steps for lane in (s.lanes if isinstance(s, Together) else ((s,),)))
    return {s.kernel: every[s.kernel] for lane in lanes for s in lane if isinstance(s, Run)}


@dataclass
class _Group:
    """Runs that share a launch, and what that takes."""

    counts: Counter[str] = field(default_factory=Counter)
    runs: list[int] = field(default_factory=list)
    seconds: float = 0.0


class _Ticks:
    """Steps in the order in which they can start, tick by tick."""

    def __init__(self, program: Program, costs: PackCosts, ahead: float) -> None:
        self.steps, self.costs = program.steps, costs
        self.graph = Dependencies.of(program.steps)
        self.longest = self.graph.longest_s([costs.alone(s) for s in program.steps])
        self.ahead_s = ahead * max(self.longest, default=0.0)
        self.missing = [len(b) for b in self.graph.before]
        self.ready: list[int] = []
        self.out: list[Step] = []
        self.seconds = 0.0
        self._prices: dict[tuple[tuple[str, int], ...], float] = {}
        self._free([i for i, n in enumerate(self.missing) if n == 0])

    def run(self) -> None:
        """Put every step into ``out``."""
        while self.ready:
            least = max(self.longest[i] for i in self.ready) - self.ahead_s
            now = [i for i in self.ready if self.longest[i] >= least]
            self.ready = [i for i in self.ready if self.longest[i] < least]
            for group in self._groups(now):
                self._emit(group)
            self._release(now)

    def _groups(self, runs: list[int]) -> list[_Group]:
        """Divide the runs of a tick among launches: each joins the one where it costs least, or has its own."""
        groups: list[_Group] = []
        for i in sorted(runs, key=self._order):
            alone, key = self.costs.alone(self.steps[i]), self._key(i)
            best, least = None, alone
            for group in groups if key in self.costs.kinds else ():
                if key not in group.counts and len(group.counts) == MOST_KINDS:
                    continue
                more = self._price(group.counts + Counter({key: 1})) - group.seconds
                if more < least:
                    best, least = group, more
            if best is None:
                groups.append(_Group(Counter({key: 1}), [i], alone))
            else:
                best.counts[key] += 1
                best.runs.append(i)
                best.seconds += least
        return groups

    def _order(self, i: int) -> tuple[float, str, int]:
        """Order runs of a tick: those that take longest first, equal ones side by side, else as they were given."""
        return -self.costs.alone(self.steps[i]), self._key(i), i

    def _key(self, i: int) -> str:
        step = self.steps[i]
        return step.kernel if isinstance(step, Run) else ""

    def _price(self, counts: Mapping[str, int]) -> float:
        """Return the seconds of a pack; the same packs come again and again."""
        name = tuple(sorted(counts.items()))
        if name not in self._prices:
            self._prices[name] = self.costs.machine.price(counts, self.costs.kinds)
        return self._prices[name]

    def _emit(self, group: _Group) -> None:
        self.seconds += group.seconds
        if len(group.runs) == 1:
            self.out.append(self.steps[group.runs[0]])
            return
        lanes = (self._shared(self.steps[i]) for i in sorted(group.runs))
        self.out.append(Together(tuple((s,) for s in lanes), packed=True))

    def _shared(self, step: Step) -> Step:
        """Return a step as it stands in a pack."""
        units = self.costs.units
        return replace(step, kernel=share_key(step.kernel, units)) if isinstance(step, Run) and units else step

    def _release(self, finished: Iterable[int]) -> None:
        self._free([j for i in finished for j in self._waited_for(i)])

    def _waited_for(self, finished: int) -> list[int]:
        """Return the steps that waited for a finished one alone."""
        after = self.graph.after[finished]
        for j in after:
            self.missing[j] -= 1
        return [j for j in after if self.missing[j] == 0]

    def _free(self, steps: list[int]) -> None:
        """Note steps that may run; what is no kernel runs at once, and what that makes ready too."""
        todo = deque(sorted(steps))
        while todo:
            i = todo.popleft()
            if isinstance(self.steps[i], Run):
                self.ready.append(i)
                continue
            self.out.append(self.steps[i])
            self.seconds += self.costs.alone(self.steps[i])
            todo += self._waited_for(i)
