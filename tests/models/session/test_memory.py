"""Memory plans: nothing in use at the same time shares bytes, and arenas are as small as they can be expected to be."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.errors import ModelError
from roller.models.graph.arena_packing import ALIGN_BYTES, pack_buffers
from roller.models.graph.lifetimes import Lifetime, peak_bytes
from roller.models.graph.memory_aliases import resolve_aliases
from roller.models.graph.memory_plan import _arena_lifetimes, plan_memory
from roller_runtime.plan.execution_plan import ARENA, CONSTANT, INPUT, OUTPUT
from roller_runtime.plan.program_steps import Copy, Join, ParallelGroup, Program, Run, View, values_read, values_written
from roller_runtime.session.packed_constants import flatten_lanes
from tests.models.session import programs


@dataclass(frozen=True)
class Usage:
    """How good a plan is.

    Parameters
    ----------
    arena_bytes
        What the plan takes.
    peak_bytes
        What is in use at once at the worst moment: no plan takes less.
    sum_bytes
        What it would be without sharing.
    """

    arena_bytes: int
    peak_bytes: int
    sum_bytes: int


def usage(program: Program) -> Usage:
    """Return what the plan of a program takes, and between which bounds that lies (bytes, rounded to cache lines)."""
    resolved = resolve_aliases(program)
    lives = _arena_lifetimes(resolved)
    sizes = [-(-resolved.program.values[name].nbytes // ALIGN_BYTES) * ALIGN_BYTES for name in lives]
    _, total = pack_buffers(tuple(lives.values()), sizes)
    return Usage(total, peak_bytes(zip(lives.values(), sizes, strict=True)), sum(sizes))


def lives(max_groups: int = 2):
    plain = st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda p: Lifetime(p[0], p[0] + p[1]))
    # Lanes of group g stand at 100 * g + 10 * lane.
    inner = st.tuples(st.integers(1, max_groups), st.integers(0, 2), st.integers(0, 8), st.integers(0, 4)).map(
        lambda p: Lifetime(100 * p[0] + 10 * p[1] + p[2], 100 * p[0] + 10 * p[1] + min(9, p[2] + p[3]), p[0], p[1])
    )
    return st.lists(st.tuples(st.one_of(plain, inner), st.integers(0, 5000)), max_size=40)


@given(lives())
def test_buffers_in_use_at_once_lie_apart(drawn):
    found = [life for life, _ in drawn]
    sizes = [size for _, size in drawn]
    offsets, total = pack_buffers(found, sizes)
    for a, b in itertools.combinations(range(len(found)), 2):
        if found[a].overlaps(found[b]) and sizes[a] and sizes[b]:
            assert offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]
    assert all(o % 64 == 0 and o + s <= total for o, s in zip(offsets, sizes, strict=True))
    rounded = [-(-s // 64) * 64 for s in sizes]
    assert peak_bytes(zip(found, rounded, strict=True)) <= total <= sum(rounded)


def test_an_arena_of_buffers_in_a_row_is_as_small_as_can_be():
    found = [Lifetime(n, n + 1) for n in range(50)]
    _, total = pack_buffers(found, [6400] * 50)
    assert total == 12800


def chain_with_lanes(seed: int) -> Program:
    """A program of random reads, lanes, views and joins; its kernels are never run."""
    rng = np.random.default_rng(seed)
    shapes, constants = {"x": (1, 4, 5)}, {"k": np.zeros((1, 3, 5), np.float32)}
    readable, steps, fresh = ["x", "k"], [], itertools.count()
    shapes_of = lambda n: shapes.get(n) or constants[n].shape  # noqa: E731

    def run(among: list[str]) -> Run:
        name = f"v{next(fresh)}"
        shapes[name] = (1, int(rng.integers(1, 9)), 5)
        return Run(name, "k", tuple(rng.choice(among, size=min(2, len(among)), replace=False)), (name,))

    for _ in range(14):
        kind = rng.integers(0, 5)
        if kind == 0:
            step = ParallelGroup(tuple(_lane(run, readable, rng) for _ in range(rng.integers(1, 4))))
        elif kind == 1:
            source = str(rng.choice(readable))
            name, (_, rows, _) = f"v{next(fresh)}", shapes_of(source)
            first = int(rng.integers(0, rows))
            shapes[name] = (1, rows - first, 5)
            step = View(source, name, 20 * first)
        elif kind == 2:
            sources = tuple(str(n) for n in rng.choice(readable, size=int(rng.integers(1, 4))))
            name = f"v{next(fresh)}"
            shapes[name] = (1, sum(shapes_of(n)[1] for n in sources), 5)
            step = Join(sources, name, 1)
        else:
            step = run(readable)
        steps.append(step)
        readable += values_written(step)
    outputs = [str(n) for n in rng.choice(readable, size=3, replace=False)]
    inputs = {"x": shapes.pop("x")}
    return programs.program(steps, inputs, outputs, shapes, {}, constants)


def _lane(run, readable, rng):
    mine, made = list(readable), []
    for _ in range(rng.integers(1, 4)):
        made.append(run(mine))
        mine += values_written(made[-1])
    return tuple(made)


class Bytes:
    """Runs a program symbolically: every byte carries the name of what was written there, and reads check it."""

    def __init__(self, program: Program) -> None:
        self.program, self.plan = program, plan_memory(program)
        self.wanted = self.contents()

    def contents(self) -> dict[str, list[tuple[str, int]]]:
        """Who wrote each byte of every value, followed through the steps of the program itself."""
        values, held = self.program.values, {}
        for name in (*self.program.inputs, *self.program.constants):
            held[name] = [(name, n) for n in range(values[name].nbytes)]
        for step in flatten_lanes(self.program.steps):
            if isinstance(step, View):
                end = step.offset_bytes + values[step.target].nbytes
                held[step.target] = held[step.source][step.offset_bytes : end]
            elif isinstance(step, Join):
                held[step.target] = [b for s in step.sources for b in held[s]]
            else:
                for name in values_written(step):
                    held[name] = [(name, n) for n in range(values[name].nbytes)]
        return held

    def space(self, memory, place):
        return memory.setdefault((place.space, place.name if place.space == CONSTANT else place.index), {})

    def read(self, memory, name):
        place = self.plan.places[name]
        space, size = self.space(memory, place), self.plan.program.values[name].nbytes
        return [space.get(place.offset_bytes + n) for n in range(size)]

    def write(self, memory, name, content):
        place = self.plan.places[name]
        space = self.space(memory, place)
        for n, byte in enumerate(content):
            space[place.offset_bytes + n] = byte

    def step(self, memory, step):
        if isinstance(step, Copy):
            source, target = self.read(memory, step.source), self.read(memory, step.target)
            for row in range(step.rows):
                of = step.source_offset_bytes + row * step.source_pitch_bytes
                at = step.target_offset_bytes + row * step.target_pitch_bytes
                target[at : at + step.row_bytes] = source[of : of + step.row_bytes]
            self.write(memory, step.target, target)
            return
        for name in step.inputs:
            assert self.read(memory, name) == self.wanted[name], f"{step.label} reads a damaged '{name}'"
        for name in step.outputs:
            self.write(memory, name, self.wanted[name])

    def run(self, rng):
        memory = {}
        for name in (*self.program.inputs, *self.program.constants):
            self.write(memory, name, self.wanted[name])
        for step in self.plan.program.steps:
            if not isinstance(step, ParallelGroup):
                self.step(memory, step)
                continue
            lanes = [list(lane) for lane in step.lanes]
            while any(lanes):  # any order that keeps lanes in order
                lane = lanes[rng.choice([n for n, left in enumerate(lanes) if left])]
                self.step(memory, lane.pop(0))
        for number, name in enumerate(self.program.outputs):
            content = memory.get((OUTPUT, number), {})
            assert [content.get(n) for n in range(self.program.values[name].nbytes)] == self.wanted[name]


@given(st.integers(0, 10**6))
def test_no_step_of_any_order_reads_what_another_value_has_overwritten(seed):
    program = chain_with_lanes(seed)
    Bytes(program).run(np.random.default_rng(seed))
    found = usage(program)
    assert found.peak_bytes <= found.arena_bytes <= found.sum_bytes


def test_joins_of_joins_are_computed_in_place():
    found = plan_memory(programs.dense_block())
    assert not [s for s in found.program.steps if isinstance(s, (Copy, Join, View))]
    at = {n: found.places[n].offset_bytes - found.places["abc"].offset_bytes for n in ("a", "b", "ab", "c")}
    assert at == {"a": 0, "b": 4 * 36 * 4, "ab": 0, "c": 8 * 36 * 4}


def test_a_join_within_rows_is_one_copy_with_pitch_per_source():
    found = [s for s in plan_memory(programs.dense_block(batch=2)).program.steps if isinstance(s, Copy)]
    width = 4 * 36 * 4
    assert [(s.source, s.target, s.rows, s.row_bytes, s.target_offset_bytes, s.target_pitch_bytes) for s in found] == [
        ("a", "ab", 2, width, 0, 2 * width),
        ("b", "ab", 2, width, width, 2 * width),
        ("ab", "abc", 2, 2 * width, 0, 3 * width),
        ("c", "abc", 2, width, 2 * width, 3 * width),
    ]


def test_all_joins_of_one_growing_list_share_its_memory():
    """As torch exports DenseNet: every join lists all sources again."""
    one, steps, shapes, names = (1, 2, 3), [], {}, []
    for n in range(4):
        names.append(f"s{n}")
        steps.append(programs.run("k", "x", names[-1]))
        shapes[names[-1]] = one
        if n:
            steps.append(Join(tuple(names), f"j{n}", 1))
            shapes[f"j{n}"] = (1, 2 * (n + 1), 3)
    steps.append(programs.run("k", "j3", "y"))
    found = plan_memory(programs.program(steps, {"x": one}, ["y"], {**shapes, "y": (1, 8, 3)}))
    assert not any(isinstance(s, Copy) for s in found.program.steps)
    assert found.arena_bytes == 128  # 8 * 3 floats, rounded to cache lines


def test_outputs_are_written_where_the_caller_wants_them():
    found = plan_memory(programs.mixed())
    places = found.places
    # 'flat' is all of 'r', so the kernel writes it there; 'tail' is a part of it.
    assert (places["r"].space, places["r"].index, places["t"].space, places["t"].index) == (OUTPUT, 0, OUTPUT, 4)
    copies = {s.source: places[s.target] for s in found.program.steps if isinstance(s, Copy)}
    assert {n: p.index for n, p in copies.items()} == {"x": 1, "tail": 2, "table": 3, "t": 5}
    assert places["x"].space == INPUT
    assert places["table"].space == CONSTANT
    assert found.arena_bytes == 64  # 'rows'


def test_views_off_the_alignment_of_a_device_are_copied():
    steps = [programs.run("k", "x", "a"), View("a", "b", 4), View("a", "c", 16), programs.run("k", ("b", "c"), "y")]
    program = programs.program(steps, {"x": (12,)}, ["y"], {"a": (12,), "b": (8,), "c": (8,), "y": (8,)})
    found = plan_memory(program, value_align_bytes=16)
    assert [s for s in found.program.steps if isinstance(s, Copy)] == [Copy("a", "b", 1, 32, 4)]
    assert found.places["c"].offset_bytes == found.places["a"].offset_bytes + 16
    assert found.places["a"].space == ARENA


def test_what_no_step_writes_is_refused():
    program = programs.mlp()
    with pytest.raises(ModelError, match="reads 'h0', which no step before it writes"):
        plan_memory(replace(program, steps=program.steps[1:]))
    with pytest.raises(ModelError, match="output 'nobody' is written by no step"):
        plan_memory(replace(program, outputs=("nobody",), values={**program.values, "nobody": program.values["x"]}))


def test_reads_and_writes_of_a_plan_all_have_places():
    for make in (programs.mlp, programs.dense_block, programs.lanes, programs.mixed):
        found = plan_memory(make())
        names = {n for s in found.program.steps for n in (*values_read(s), *values_written(s))}
        assert names <= set(found.places)
