"""Packing: ready kernels share a launch where that is predicted to be faster, and only there."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from roller.models.graph.horizontal import Kind, Machine, PackCosts, packed
from roller.models.graph.memory import plan
from roller.models.graph.steps import Run, Together, reads, writes
from roller.models.session.horizontal import counts_of
from tests.models.session import programs
from tests.offenders import every

MACHINE = Machine(100, 2e-6, 32, 2048, 65536, 200_000, 1024, 32)
SMALL = Kind(1e-6, 1, 10, 64, 32, 0, 1.0, (1e-8, 0.0), (1e-8,))


def grid(layers: int, steps: int, width: int = 8):
    """A wavefront: every cell reads that before it and that below it, in the order of layers."""
    shape, out, between = (1, width), [], {}
    for n, t in itertools.product(range(layers), range(steps)):
        sources = (f"h{n - 1}.{t}" if n else "x", f"h{n}.{t - 1}" if t else "x")
        out.append(programs.run("cell", sources, f"h{n}.{t}"))
        between[f"h{n}.{t}"] = shape
    return programs.program(out, {"x": shape}, [f"h{layers - 1}.{steps - 1}"], between, {"cell": programs.unary(shape)})


def costs(program, kind=SMALL, **changes) -> PackCosts:
    alone = kind.launches * MACHINE.launch_s + kind.body_s
    return PackCosts(MACHINE, dict.fromkeys(program.kernels, kind), dict.fromkeys(program.kernels, alone), **changes)


def in_order(program) -> bool:
    """Whether every step reads only what is there, members of a pack nothing of each other."""
    known = {*program.inputs, *program.constants}
    for step in program.steps:
        if not set(reads(step)) <= known:
            return False
        known |= set(writes(step))
    return True


def test_a_wave_of_cells_is_a_launch():
    program = grid(4, 6)
    made = packed(program, costs(program))
    assert in_order(made.program)
    sizes = [len(s.lanes) if isinstance(s, Together) else 1 for s in made.program.steps]
    assert sizes == [1, 2, 3, 4, 4, 4, 3, 2, 1]
    assert (made.packs, made.runs) == (7, 22)
    assert made.seconds == pytest.approx(9 * 3e-6)
    assert plan(made.program).arena_bytes


def test_kernels_that_fill_the_device_stay_alone():
    program = grid(4, 6)
    large = replace(SMALL, body_s=100e-6, blocks=64_000, waves=20.0, busy_s=(90e-6, 0.0))
    made = packed(program, costs(program, large))
    # Sharing a launch still saves to start it: what packs gain is just that.
    assert made.seconds == pytest.approx(24 * 102e-6, rel=0.2)
    crowded = replace(large, registers=256, threads=256)  # one block of a unit instead of many
    small = Kind(1e-6, 1, 10, 64, 32, 0)
    both = {"large": crowded, "small": small}
    alone = MACHINE.price({"small": 4}, both)
    assert MACHINE.price({"small": 4000}, both, ("large",)) > MACHINE.price({"small": 4000}, both)
    assert MACHINE.price({"small": 4}, both, ("large",)) == alone


def test_kernels_that_are_not_known_stay_alone():
    program = grid(3, 3)
    assert packed(program, replace(costs(program), kinds={})).program is program
    chain = grid(1, 9)
    assert packed(chain, costs(chain)).program is chain


def test_a_pack_takes_as_long_as_what_its_kernels_share():
    kinds = {"a": SMALL, "b": replace(SMALL, body_s=5e-6, launches=2, shared_s=(3e-6,))}
    price = MACHINE.price
    assert price({"a": 1, "b": 1}, kinds) == pytest.approx(2 * 2e-6 + 5e-6)  # the slower of two
    assert price({"b": 4}, kinds) == pytest.approx(2 * 2e-6 + 12e-6)  # memory
    slots = MACHINE.resident([SMALL]) * MACHINE.units
    idle = {"a": replace(SMALL, busy_s=(0.0,), shared_s=(0.0,))}
    assert price({"a": slots}, idle) == pytest.approx(2e-6 + 10e-6)  # ten blocks each
    assert price({"a": 1}, {"a": replace(SMALL, scratchpad_bytes=300_000)}) == math.inf


@every(
    ("kind", "blocks"),
    [
        ({}, 32), ({"threads": 1024}, 2), ({"threads": 33}, 32), ({"registers": 128, "threads": 128}, 4),
        ({"scratchpad_bytes": 49_000}, 3),
    ],
)  # fmt: skip
def test_resident_blocks_are_those_of_the_largest_kernel(kind, blocks):
    assert MACHINE.resident([SMALL, replace(SMALL, **kind)]) == blocks


def test_kernels_of_packs_are_those_of_the_share():
    program = grid(3, 4)
    made = packed(program, costs(program, units=25))
    assert made.program.kernels.keys() == {"cell", "cell@25"}
    assert made.program.kernels["cell@25"].units == 25
    for step in made.program.steps:
        assert counts_of(step).keys() == {"cell@25"} if isinstance(step, Together) else step.kernel == "cell"


def test_steps_do_not_run_so_far_ahead_that_memory_grows():
    """Eight independent chains that start with large values: all at once they would need eight times the memory."""
    width, steps, between = 1 << 18, [], {}
    for n in range(8):
        steps += [programs.run("big", "x", f"b{n}"), programs.run("small", f"b{n}", f"s{n}")]
        between |= {f"b{n}": (width,), f"s{n}": (4,)}
    program = programs.program(
        [*steps, programs.run("end", [f"s{n}" for n in range(8)], "y")], {"x": (4,)}, ["y"], {**between, "y": (4,)},
        {key: programs.unary((4,)) for key in ("big", "small", "end")},
    )  # fmt: skip
    made = packed(program, costs(program))
    assert in_order(made.program)
    assert plan(made.program).arena_bytes <= 1.3 * plan(program).arena_bytes + (1 << 20)


def test_everything_else_keeps_its_place():
    program = programs.mixed()
    made = packed(program, costs(program))
    assert in_order(made.program)
    kept = [s for s in programs.flat(made.program.steps) if not isinstance(s, Run)]
    assert sorted(kept, key=program.steps.index) == [s for s in program.steps if not isinstance(s, Run)]
    assert made.runs == 2  # the activation of the input, and that of what does not depend on it
