"""Chooses, by predicted time, the values of a model whose channels are stored in blocks.

A step runs either on plain or on blocked values (:mod:`roller.models.graph.blocked_channel_rewrite`); a kernel
converts each
value that passes between the two kinds of steps. A minimum cut finds the cheapest choice. Inputs and outputs keep their
declared layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from roller.hardware import DeviceSpec
from roller.models.graph.blocked_channel_rewrite import (
    BlockedKernel,
    BlockedLayout,
    make_layout_conversion_kernel,
    reduces_channels,
    rewrite_to_blocked,
)
from roller.models.graph.mincut import INFINITE, FlowNetwork
from roller.perf.estimate import Estimate
from roller_runtime.plan.program_steps import (
    Append,
    Copy,
    Join,
    KernelSource,
    ParallelGroup,
    Program,
    Run,
    Step,
    Value,
    View,
    values_read,
    values_written,
)

#: Predicts kernels by key; the result lacks kernels for which no program fits.
Predict = Callable[[Mapping[str, KernelSource], int | None], Mapping[str, Estimate]]

#: Minimum relative gain in a model's predicted time that justifies blocked kernels.
LEAST_GAIN = 0.01
#: Capacity units of the network per second, and time, in seconds, that stands for an impossible kernel.
_PER_SECOND, _FOREVER_S = 10**12, 1e6


@dataclass(frozen=True)
class ChosenLayouts:
    """A program with the layouts chosen for its values.

    Parameters
    ----------
    plain_s, chosen_s
        Predicted time, in seconds, of the kernels that could be blocked: without blocks, and as chosen, including
        conversions.
    blocked
        Labels of the steps that run on blocked values.
    conversions
        Number of conversion kernels.
    written
        Values that the blocked steps write, which identify these steps in the same program at other sizes.
    blockable
        Values that may be blocked at all sizes of a range; ``None`` if the sizes are fixed.
    """

    program: Program
    plain_s: float = 0.0
    chosen_s: float = 0.0
    blocked: tuple[str, ...] = ()
    conversions: int = 0
    written: frozenset[str] = frozenset()
    blockable: frozenset[str] | None = None

    def __str__(self) -> str:
        """Return the choice and its predicted gain on one line."""
        if not self.blocked:
            return "layouts: those of the model"
        gain = f"{self.plain_s * 1e3:.4g} -> {self.chosen_s * 1e3:.4g} ms predicted"
        return f"channels in blocks in {len(self.blocked)} steps, {self.conversions} values converted: {gain}"


def choose_layouts(
    program: Program, spec: DeviceSpec, predict: Predict, others: Sequence[Program] = ()
) -> ChosenLayouts:
    """Return the program with blocked channels if that is predicted to be faster.

    ``others`` are the same program at other sizes, for which the choice must be possible too.
    """
    # A block is one vector register; devices whose lanes belong to several threads have no blocks.
    if not spec.limits.usable_vector_registers:
        return ChosenLayouts(program)
    block = spec.teu.lanes
    choice = _problem_for_all_sizes(program, others, block) if others else _LayoutProblem(program, block)
    if not choice.has_channel_reduction:  # only reductions over channels gain; other kernels follow them
        return ChosenLayouts(program)
    plain = {s.kernel: program.kernels[s.kernel] for n in choice.able if isinstance(s := program.steps[n], Run)}
    seconds = {key: e.seconds for key, e in predict(plain | choice.sources, None).items()}
    chosen = choice.cheapest_blocked_steps(seconds)
    plain_s, chosen_s = choice.seconds(frozenset(), seconds), choice.seconds(chosen, seconds)
    if not chosen or plain_s - chosen_s < LEAST_GAIN * plain_s:
        return ChosenLayouts(program, plain_s, plain_s)
    return replace(choice.program_with(chosen), plain_s=plain_s, chosen_s=chosen_s)


def apply_layouts(program: Program, spec: DeviceSpec, chosen: ChosenLayouts) -> Program:
    """Return a program with the layouts chosen for the same program at other sizes."""
    if not chosen.written:
        return program
    choice = _LayoutProblem(program, spec.teu.lanes, chosen.blockable)
    return choice.program_with(
        frozenset(n for n in choice.able if chosen.written.issuperset(values_written(program.steps[n])))
    ).program


def _problem_for_all_sizes(program: Program, others: Sequence[Program], block: int) -> _LayoutProblem:
    """Return the problem without the values and steps that cannot be blocked at some of the sizes."""
    # A dimension that varies may be a multiple of the block at one size only; channels are the same at all sizes.
    several = [_LayoutProblem(p, block) for p in (program, *others)]
    channels = [{(n, v.channels) for n, v in problem.values.items()} for problem in several]
    same = frozenset(n for n, _ in set.intersection(*channels))
    several = [_LayoutProblem(problem.program, block, same) for problem in several]
    everywhere = set.intersection(*(problem.written_by_able_steps for problem in several))
    found = several[0]
    found.able = {n: k for n, k in found.able.items() if everywhere.issuperset(values_written(program.steps[n]))}
    return found


@dataclass
class _LayoutProblem:
    """The steps of a plain program that may run on blocked values, and their kernels.

    Parameters
    ----------
    block
        Number of channels per block.
    blockable
        Values that may be blocked; ``None`` for all whose shape allows it.
    values
        Layout of each value that may be blocked.
    able
        Blocked kernel (``None`` for a join) of each step that may run on blocked values, by position of the step.
    """

    program: Program
    block: int
    blockable: frozenset[str] | None = None
    values: dict[str, BlockedLayout] = field(default_factory=dict)
    able: dict[int, BlockedKernel | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        p = self.program
        outside = {n for s in p.steps if not isinstance(s, (Run, Join)) for n in values_written(s)}
        for name in p.values.keys() - {*p.inputs, *p.outputs, *p.constants} - outside:
            layout = BlockedLayout.of(p.values[name].shape, self.block)
            if layout is not None and (self.blockable is None or name in self.blockable):
                self.values[name] = layout
        known: dict[tuple[object, ...], BlockedKernel | None] = {}
        for n, step in enumerate(p.steps):
            if isinstance(step, Join) and {*step.sources, step.target} <= self.values.keys():
                self.able[n] = None
            elif isinstance(step, Run):
                found = self._blocked_kernel(step, known)
                if found is not None:
                    self.able[n] = found

    def _blocked_kernel(self, step: Run, known: dict[tuple[object, ...], BlockedKernel | None]) -> BlockedKernel | None:
        """Return the kernel of a step with all blockable values blocked; ``None`` if there is no such kernel."""
        source = self.program.kernels[step.kernel]
        expr = source.expression
        tensors = (*zip(expr.inputs, step.inputs, strict=True), *zip(expr.output_tensors, step.outputs, strict=True))
        layouts = {t.name: self.values[name] for t, name in tensors if name in self.values}
        key = (step.kernel, tuple(layouts.items()))
        if layouts and key not in known:
            known[key] = rewrite_to_blocked(source, layouts)
        return known.get(key)

    @property
    def written_by_able_steps(self) -> set[str]:
        """Values that the steps which may be blocked write."""
        return {name for n in self.able for name in values_written(self.program.steps[n])}

    @cached_property
    def has_channel_reduction(self) -> bool:
        """Whether a kernel reduces over blocked channels."""
        runs = ((s, made) for n, made in self.able.items() if isinstance(s := self.program.steps[n], Run))
        kernels = {made.key: (made.source, [k for k, n in enumerate(s.inputs) if n in self.values])
                   for s, made in runs if made is not None}  # fmt: skip
        return any(reduces_channels(source, blocked) for source, blocked in kernels.values())

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Positions of the steps that read a value, by its name."""
        found: dict[str, list[int]] = {}
        for n, step in enumerate(self.program.steps):
            for name in values_read(step):
                found.setdefault(name, []).append(n)
        return found

    @cached_property
    def writers(self) -> dict[str, int]:
        """Position of the step that writes each value that may be blocked."""
        return {m: n for n, s in enumerate(self.program.steps) for m in values_written(s) if m in self.values}

    @cached_property
    def conversions(self) -> dict[tuple[str, bool], BlockedKernel]:
        """Conversion kernels, keyed by value name and by whether they convert to blocks."""
        known: dict[tuple[BlockedLayout, str, bool], BlockedKernel] = {}
        found = {}
        for name in self.writers:
            for to_blocked in (True, False):
                at = self.values[name], self.program.values[name].dtype, to_blocked
                if at not in known:
                    known[at] = make_layout_conversion_kernel(at[0], at[1], to_blocked=to_blocked)
                found[name, to_blocked] = known[at]
        return found

    @cached_property
    def sources(self) -> dict[str, KernelSource]:
        """Sources of kernels on blocked values, and of conversions, by key."""
        kernels = (m for m in (*self.able.values(), *self.conversions.values()) if m is not None)
        return {m.key: m.source for m in kernels}

    def cheapest_blocked_steps(self, seconds: Mapping[str, float]) -> frozenset[int]:
        """Return the positions of the steps to run on blocked values so that the total predicted time is minimal."""
        # Cutting an edge costs its capacity: the time of a step's plain or blocked kernel, or of the conversion of a
        # value whose writer and readers use different layouts.
        net = FlowNetwork()
        nodes = {n: net.add_node() for n in self.able}
        for n, made in self.able.items():
            step = self.program.steps[n]
            if isinstance(step, Run) and made is not None:
                net.add_edge(net.SOURCE, nodes[n], _edge_capacity(seconds.get(step.kernel)))
                net.add_edge(nodes[n], net.SINK, _edge_capacity(seconds.get(made.key)))
        for name, n in self.writers.items():
            # A conversion is paid once for all readers of the other layout.
            mine, back, there = nodes.get(n, net.SINK), net.add_node(), net.add_node()
            net.add_edge(mine, back, _edge_capacity(seconds.get(self.conversions[name, False].key)))
            net.add_edge(there, mine, _edge_capacity(seconds.get(self.conversions[name, True].key)))
            for reader in self.readers.get(name, ()):
                net.add_edge(back, nodes.get(reader, net.SINK), INFINITE)
                net.add_edge(nodes.get(reader, net.SINK), there, INFINITE)
        side = net.source_side()
        return frozenset(n for n, node in nodes.items() if node in side)

    def seconds(self, chosen: frozenset[int], seconds: Mapping[str, float]) -> float:
        """Return the predicted time, in seconds, of all blockable kernels and conversions for a choice of steps."""
        keys = [c.key for c in self._needed_conversions(chosen).values()]
        for n, made in self.able.items():
            step = self.program.steps[n]
            if isinstance(step, Run) and made is not None:
                keys.append(made.key if n in chosen else step.kernel)
        return sum(seconds.get(key, _FOREVER_S) for key in keys)

    def _needed_conversions(self, chosen: frozenset[int]) -> dict[str, BlockedKernel]:
        """Return the conversions of a choice by value name."""
        return {
            name: self.conversions[name, n not in chosen]
            for name, n in self.writers.items()
            if any((r in chosen) != (n in chosen) for r in self.readers.get(name, ()))
        }

    def program_with(self, chosen: frozenset[int]) -> ChosenLayouts:
        """Return the program with the steps at ``chosen`` on blocked values."""
        p, needed = self.program, self._needed_conversions(chosen)
        names = {name: _unused_name(f"{name}/converted", p.values) for name in needed}
        values, steps = dict(p.values), list[Step]()
        for n, step in enumerate(p.steps):
            here = n in chosen
            other = {m: names[m] for m in values_read(step) if m in needed and (self.writers[m] in chosen) != here}
            steps.append(_replace_inputs_and_kernel(step, other, self.able[n] if here else None))
            for name in values_written(step):
                layout = self.values.get(name)
                if here and layout is not None:
                    values[name] = replace(values[name], shape=layout.shape)
                if name in needed and layout is not None:
                    shape = p.values[name].shape if here else layout.shape
                    values[names[name]] = Value(names[name], shape, p.values[name].dtype)
                    steps.append(Run(f"layout of {name}", needed[name].key, (name,), (names[name],)))
        known = {**p.kernels, **self.sources}
        kernels = {s.kernel: known[s.kernel] for s in steps if isinstance(s, Run)}
        labels = tuple(str(getattr(p.steps[n], "label", "join")) for n in sorted(chosen))
        done = replace(p, values=values, steps=tuple(steps), kernels=kernels)
        written = frozenset(name for n in chosen for name in values_written(p.steps[n]))
        return ChosenLayouts(done, blocked=labels, conversions=len(needed), written=written, blockable=self.blockable)


def _replace_inputs_and_kernel(step: Step, names: Mapping[str, str], made: BlockedKernel | None) -> Step:
    """Return a step with renamed inputs and, if ``made`` is given, with that kernel."""
    if isinstance(step, Run):
        return replace(
            step, kernel=step.kernel if made is None else made.key, inputs=_rename_values(step.inputs, names)
        )
    if not names:
        return step
    assert not isinstance(step, ParallelGroup)  # sections are created after layouts
    if isinstance(step, Join):
        return replace(step, sources=_rename_values(step.sources, names))
    if isinstance(step, (View, Copy, Append)):
        return replace(step, source=names.get(step.source, step.source))
    return replace(step, inputs=_rename_values(step.inputs, names))


def _rename_values(names: Sequence[str], new: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(new.get(n, n) for n in names)


def _unused_name(name: str, taken: Mapping[str, object]) -> str:
    return name if name not in taken else _unused_name(f"{name}_", taken)


def _edge_capacity(seconds: float | None) -> int:
    """Return a cost as an integer capacity; infinite for a kernel for which no program fits."""
    return INFINITE if seconds is None or not seconds < _FOREVER_S else round(seconds * _PER_SECOND)
