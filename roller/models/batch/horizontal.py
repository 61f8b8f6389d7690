"""Packed kernels of a model whose kernels are compiled: made, built, and priced again by what they really are."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from roller.artifact import KernelArtifact
from roller.backends.build import build_packed
from roller.errors import ArtifactError, BuildError
from roller.hardware import DeviceSpec
from roller.horizontal import HorizontalKernel
from roller.models.batch.executors import Workers
from roller.models.batch.horizontal_prices import kind_of, machine_of
from roller.models.graph.horizontal import Kind
from roller.models.graph.memory import plan
from roller.models.graph.plan import Plan
from roller.models.graph.steps import Copy, KernelSource, Program, Run, Step, Together
from roller.models.session.horizontal import counts_of, launches_of, pack_key, pack_name, packs_of
from roller.perf.estimate import Estimate
from roller.runtime.cache import KernelCache
from roller.runtime.cache_key import code_digest
from roller.runtime.cache_notes import read_note, write_note
from roller.templates.gpu.emit.horizontal import fits, largest_capacity, pack, stages_of, why_not

#: Packed kernels of a model at most: each is compiled, and those that gain least are not worth it.
_MOST_KERNELS = 32


@dataclass(frozen=True)
class Packs:
    """A program with packs and the kernels of them.

    Parameters
    ----------
    program
        Its packs are those of ``kernels``.
    kernels
        By :func:`roller.models.session.horizontal.pack_key`.
    predicted_s
        Of every pack, by :func:`roller.models.session.horizontal.pack_name`.
    seconds
        Predicted, of the whole program.
    left_out
        Why kernels or packs stayed alone, by key.
    """

    program: Program
    kernels: Mapping[str, HorizontalKernel]
    predicted_s: Mapping[str, float]
    seconds: float
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Way:
    """A way to run a model.

    Parameters
    ----------
    name
        ``"packed"``, ``"streams"`` or ``"one by one"``.
    launches
        Kernels a call starts.
    predicted_s
        Predicted seconds of a call.
    """

    name: str
    launches: int
    predicted_s: float


@dataclass(frozen=True)
class Planned:
    """The plan of a model for a GPU, and what it was chosen from.

    Parameters
    ----------
    plan
        The one that is predicted to be the fastest.
    packs
        Kernels of its packs.
    plain
        The plan without packs, where ``plan`` has some: what a device compares it with.
    ways
        Plan first, then the other.
    left_out
        Why kernels stayed out of packs, by key.
    """

    plan: Plan
    packs: Mapping[str, HorizontalKernel] = field(default_factory=dict)
    plain: Plan | None = None
    ways: tuple[Way, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


def planned(
    program: Program, artifacts: Mapping[str, KernelArtifact], spec: DeviceSpec, packs: Packs | None
) -> Planned:
    """Plan the memory of a program, or of the one with packs where that is predicted to be faster."""
    predicted = {key: float(a.estimate["seconds"]) for key, a in artifacts.items()}
    align_bytes = spec.traits.value_align_bytes
    plain = plan(program, predicted_s=predicted, value_align_bytes=align_bytes)
    if not spec.traits.blocks:
        return Planned(plain)
    streams = any(isinstance(s, Together) for s in program.steps)
    seconds = Prices(artifacts, spec, program.kernels).total(program.steps)
    way = Way("streams" if streams else "one by one", launches_of(program.steps, artifacts, {}), seconds)
    if packs is None:
        return Planned(plain, ways=(way,))
    own = Way("packed", launches_of(packs.program.steps, artifacts, packs.kernels), packs.seconds)
    if not packs.kernels or own.predicted_s >= way.predicted_s:
        return Planned(plain, ways=(way, own), left_out=packs.left_out)
    made = plan(packs.program, predicted_s=predicted | dict(packs.predicted_s), value_align_bytes=align_bytes)
    return Planned(made, packs.kernels, plain, (own, way), packs.left_out)


@dataclass(frozen=True)
class BuildPack:
    """Build one packed kernel: a task of a crew."""

    runs_kernels: ClassVar[bool] = False

    packed: HorizontalKernel

    def run(self) -> HorizontalKernel:
        """Build."""
        return build_packed(self.packed)


class Prices:
    """What steps of compiled kernels are predicted to take.

    Parameters
    ----------
    artifacts
        By key.
    spec
        The device.
    sources
        What the kernels were constructed for.
    """

    def __init__(
        self, artifacts: Mapping[str, KernelArtifact], spec: DeviceSpec, sources: Mapping[str, KernelSource]
    ) -> None:
        self.launch_s, self.machine, self._artifacts = spec.execution.launch_s, machine_of(spec), artifacts
        self._copies = spec.memory_layers[-1].bandwidth_bytes_per_s / 2
        kinds = ((key, _kind(artifacts[key], spec, s.units)) for key, s in sources.items() if key in artifacts)
        self.kinds = {key: kind for key, kind in kinds if kind is not None}

    def step(self, step: Step, packed: Mapping[str, float] | None = None) -> float:
        """Return the predicted seconds of a step; ``packed`` has those of packs by name."""
        if isinstance(step, Run):
            return self.alone(step.kernel)
        if isinstance(step, Copy):
            return self.launch_s + step.rows * step.row_bytes / self._copies
        if not isinstance(step, Together):
            return 0.0
        if step.packed:
            return (packed or {}).get(pack_name(step)) or self.pack(counts_of(step))
        return self.launch_s + max((sum(map(self.step, lane)) for lane in step.lanes), default=0.0)

    def total(self, steps: Iterable[Step], packed: Mapping[str, float] | None = None) -> float:
        """Return the predicted seconds of steps one after another."""
        return sum(self.step(s, packed) for s in steps)

    def alone(self, key: str) -> float:
        """Return the predicted seconds of a kernel; an estimate counts one launch for several outputs with one each."""
        estimate = self._artifacts[key].estimate
        counted = float(estimate.get("terms", {}).get("launch_s", self.launch_s))
        return float(estimate["seconds"]) - counted + len(self._artifacts[key].launches) * self.launch_s

    def pack(self, counts: Mapping[str, int], beside: Iterable[str] = ()) -> float:
        """Return the predicted seconds of a pack, in a kernel that has the code of others beside."""
        return self.machine.price(counts, self.kinds, beside)


def _kind(artifact: KernelArtifact, spec: DeviceSpec, units: int | None) -> Kind | None:
    """Return what a compiled kernel takes: its estimate, put right by its launches and by what the compiler made."""
    kind = kind_of(Estimate.from_dict(artifact.estimate), spec, units)
    if kind is None:
        return None
    # What sums up parts or writes another output has few blocks, however large they are.
    main = max(artifact.launches, key=lambda launch: launch.grid[0])
    blocks, threads = main.grid[0], main.block[0] * main.block[1] * main.block[2]
    registers = float(artifact.build.get("registers", kind.registers))
    return replace(kind, launches=1 + max(stages_of(artifact)), blocks=blocks, threads=threads, registers=registers)


def packs_for(
    program: Program,
    artifacts: Mapping[str, KernelArtifact],
    spec: DeviceSpec,
    crew: Workers,
    *,
    built: bool,
    cache: KernelCache | None = None,
) -> Packs:
    """Make the packed kernels of a program."""
    left_out = {key: reason for key in sorted(program.kernels) if (reason := why_not(artifacts[key]))}
    prices = Prices(artifacts, spec, program.kernels)
    steps = _fitting(program.steps, artifacts, prices, left_out)
    steps, kernels = _chosen(steps, artifacts, prices)
    if built:
        kernels, failed = _built(kernels, artifacts, crew, cache)
        left_out |= failed
        steps = _without(steps, failed)
    predicted = {pack_name(p): prices.pack(counts_of(p), kernels[pack_key(p)].capacity) for p in packs_of(steps)}
    made = replace(program, steps=tuple(steps))
    return Packs(made, kernels, predicted, prices.total(steps, predicted), left_out)


def _fitting(
    steps: Sequence[Step], artifacts: Mapping[str, KernelArtifact], prices: Prices, left_out: Mapping[str, str]
) -> list[Step]:
    """Return the steps with packs that can be: kernels that cannot go first, and what is too much for one table is two.

    A kernel alone is a pack of its own where that saves launches: several outputs, each with its own.
    """
    out: list[Step] = []
    for step in steps:
        runs = [s for lane in step.lanes for s in lane] if isinstance(step, Together) else [step]
        fit = [s for s in runs if isinstance(s, Run) and s.kernel in prices.kinds and s.kernel not in left_out]
        out += [s for s in runs if s not in fit]
        keys = list(dict.fromkeys(s.kernel for s in fit))
        room = largest_capacity([artifacts[k] for k in keys]) if keys else 1
        parts = [fit[n : n + max(1, room)] for n in range(0, len(fit), max(1, room))]
        for part in parts:
            pack_s = prices.pack(Counter(s.kernel for s in part))
            gains = pack_s < sum(prices.alone(s.kernel) for s in part) and room > 0
            out += [Together(tuple((s,) for s in part), packed=True)] if gains else part
    return out


def _chosen(
    steps: Sequence[Step], artifacts: Mapping[str, KernelArtifact], prices: Prices
) -> tuple[list[Step], dict[str, HorizontalKernel]]:
    """Return the steps with the packs that gain most, and their kernels, not built."""
    gain: dict[str, float] = defaultdict(float)
    room: dict[str, Counter[str]] = defaultdict(Counter)
    for step in packs_of(steps):
        counts, key = counts_of(step), pack_key(step)
        gain[key] += sum(prices.alone(k) * n for k, n in counts.items()) - prices.pack(counts)
        room[key] |= counts
    homes = _homes(gain, room, artifacts, prices)
    worth: dict[str, float] = defaultdict(float)
    for key, home in homes.items():
        worth[home] += gain[key]
    kept = set(sorted(worth, key=lambda k: (-worth[k], k))[:_MOST_KERNELS])
    made = {key: _made(key, room[key], artifacts, prices) for key in sorted(kept)}
    kernels = {key: made[home] for key, home in homes.items() if home in kept}
    return _without(steps, set(gain) - set(kernels)), kernels


def _homes(
    gain: Mapping[str, float],
    room: dict[str, Counter[str]],
    artifacts: Mapping[str, KernelArtifact],
    prices: Prices,
) -> dict[str, str]:
    """Return, by the key of each pack, that of the kernel which runs it: one with more programs does as well.

    That kernel gets ``room`` for all its packs, as long as its tables have it.
    """
    homes: dict[str, str] = {}
    for key in sorted(gain, key=lambda k: (-len(room[k]), -gain[k], k)):
        own = prices.pack(room[key])
        wider = (h for h in dict.fromkeys(homes.values()) if room[key].keys() <= room[h].keys())
        fitting = (h for h in wider if fits(artifacts, room[h] | room[key]))
        homes[key] = next((h for h in fitting if prices.pack(room[key], room[h]) <= own), key)
        room[homes[key]] |= room[key]
    return homes


def _made(
    key: str, room: Mapping[str, int], artifacts: Mapping[str, KernelArtifact], prices: Prices
) -> HorizontalKernel:
    """Return a packed kernel, not built; what takes longest starts first."""
    names = sorted(room, key=lambda k: (-prices.kinds[k].body_s, k))
    made = pack({k: artifacts[k] for k in names}, room, "pack_" + hashlib.sha256(key.encode()).hexdigest()[:12])
    return replace(made, build={"blocks_per_unit": prices.machine.resident(prices.kinds[k] for k in names)})


def _without(steps: Sequence[Step], keys: Iterable[str]) -> list[Step]:
    """Return the steps with the packs of these keys taken apart."""
    gone, out = set(keys), list[Step]()
    for step in steps:
        apart = isinstance(step, Together) and step.packed and pack_key(step) in gone
        out += [s for lane in step.lanes for s in lane] if apart and isinstance(step, Together) else [step]
    return out


def _built(
    kernels: Mapping[str, HorizontalKernel],
    artifacts: Mapping[str, KernelArtifact],
    crew: Workers,
    cache: KernelCache | None,
) -> tuple[dict[str, HorizontalKernel], dict[str, str]]:
    """Return the kernels built, in parallel or from the cache, and why others cannot be or should not."""
    names = {_note(k): k for k in kernels.values()}
    found = {name: _kept(cache, name) for name in names} if cache is not None else {}
    done = {name: k for name, k in found.items() if k is not None}
    results = crew.map({name: BuildPack(k) for name, k in names.items() if name not in done})
    reasons = {}
    for name, result in results.items():
        if result.value is None:
            reasons[name] = result.record.reason or "it does not build"
            continue
        done[name] = result.value
        if cache is not None:
            write_note(cache.folder, name, result.value.to_dict())
    for name, kernel in list(done.items()):
        spills = max(int(artifacts[k].build.get("spill_bytes", 0)) for k in kernel.capacity)
        if int(kernel.build.get("spill_bytes", 0)) > spills:
            reasons[name] = f"together its kernels spill {kernel.build['spill_bytes']} bytes of registers"
        done[name] = replace(kernel, build={**kernel.build, **names[name].build})
    own = {key: _note(k) for key, k in kernels.items()}
    failed = {key: reasons[own[key]] for key in kernels if own[key] in reasons}
    return {key: done[own[key]] for key in kernels if key not in failed}, failed


def _note(kernel: HorizontalKernel) -> str:
    """Return what the cache keeps a packed kernel under."""
    text = "\0".join((code_digest(), kernel.language, str(sorted(kernel.target.items())), kernel.source))
    return hashlib.sha256(text.encode()).hexdigest()


def _kept(cache: KernelCache, name: str) -> HorizontalKernel | None:
    """Return a packed kernel from the cache; ``None`` where it has none that is whole."""
    note = read_note(cache.folder, name)
    try:
        return HorizontalKernel.from_dict(note, "cache") if note else None
    except (ArtifactError, BuildError):
        return None
