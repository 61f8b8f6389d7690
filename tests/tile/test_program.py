"""RProgram: JSON round trip, an injective text, and the arithmetic of blocks and threads."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller import ops
from roller.errors import ArtifactError, TileError
from roller.tile import RProgram
from roller.tile.alignment import RULES

_MATMUL = ops.matmul(100, 60, 50, epilogue=("bias",))


@st.composite
def programs(draw):
    """Programs over one matmul, every field drawn."""
    register = draw(st.tuples(*[st.sampled_from([1, 2, 4])] * 3))
    shared = tuple(r * draw(st.sampled_from([1, 2, 3, 8])) for r in register)
    axis = draw(st.sampled_from([None, "i", "j"]))
    staged = draw(st.sampled_from([(), ("A",), ("B",), ("A", "B")]))
    return RProgram(
        _MATMUL,
        draw(st.sampled_from(["gpu", "cpu"])),
        draw(st.sampled_from(["tiled", "rows", "streaming"])),
        (("register", register), ("shared", shared)),
        tuple((t, draw(st.integers(1, 4))) for t in staged if draw(st.booleans())),
        staged,
        axis,
        draw(st.sampled_from([2, 4])) if axis else 1,
        draw(st.booleans()),
        draw(st.sampled_from([1, 2, 4])),
        draw(st.sampled_from([(), ("transaction",), ("transaction", "bank")])),
    )


@given(programs())
def test_json_round_trip(program):
    again = RProgram.from_dict(json.loads(json.dumps(program.to_dict())))
    assert again == program and again.digest == program.digest and hash(again) == hash(program)


@given(programs(), programs())
def test_text_and_digest_are_injective(one, other):
    assert (str(one) == str(other)) == (one == other)
    assert (one.digest == other.digest) == (one == other)


@given(programs())
def test_every_field_shows_in_the_text(program):
    changed = [
        replace(program, interleaved=not program.interleaved),
        replace(program, split_k=program.split_k + 1),
        replace(program, relaxed=(*program.relaxed, "shape")),
        replace(program, staged=(*program.staged, "bias")),
        replace(program, vector_axis="j", vector_elements=16),
        replace(program, storage_padding=(("A", 31),)),
        replace(program, structure="window" if program.structure == "rows" else "rows"),
        replace(program, kind="other"),
        replace(program, tiles=(program.tiles[0], ("l1", program.tiles[1][1]))),
        replace(program, tiles=(program.tiles[0], ("shared", tuple(2 * e for e in program.tiles[1][1])))),
    ]
    texts = {str(program), *map(str, changed)}
    assert len(texts) == len(changed) + 1


@given(programs())
def test_blocks_cover_every_axis_once(program):
    block = program.block_tile
    for name, count in {**program.grid, **program.reduction_steps}.items():
        extent = next(a.extent for a in program.axes if a.name == name)
        assert (count - 1) * block[name] < extent <= count * block[name]
    assert program.blocks == program.split_k * math.prod(program.grid.values())
    assert program.threads_per_block == math.prod(program.threads.values())


def test_threads_spread_over_reductions_only_in_rows():
    tiles = (("register", (2, 2, 1)), ("shared", (8, 16, 32)))
    assert RProgram(_MATMUL, "gpu", "tiled", tiles).threads == {"i": 4, "j": 8, "k": 1}
    assert RProgram(_MATMUL, "gpu", "rows", tiles).threads == {"i": 4, "j": 8, "k": 32}


@pytest.mark.parametrize(
    ("tiles", "problem"),
    [
        ((("register", (1, 1)),), "expected 3 extents"),
        ((("register", (1, 0, 1)),), "extents of at least 1"),
        ((("register", (2, 2, 1)), ("shared", (4, 3, 1))), "not a per-axis multiple"),
    ],
)
def test_tiles_that_do_not_nest_are_refused(tiles, problem):
    with pytest.raises(TileError, match=problem):
        RProgram(_MATMUL, "gpu", "tiled", tiles)


def test_an_unknown_layer_and_damaged_data_are_named():
    program = RProgram(_MATMUL, "gpu", "tiled", (("register", (1, 1, 1)),))
    with pytest.raises(TileError, match=r"no tile in layer 'l1'; it has \['register'\]"):
        program.tile("l1")
    data = program.to_dict()
    del data["tiles"]
    with pytest.raises(ArtifactError, match="'tiles'"):
        RProgram.from_dict(data)


def test_the_rules_of_the_paper_are_all_there():
    assert list(RULES) == ["execution_unit", "transaction", "bank", "shape"]
