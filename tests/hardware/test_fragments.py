"""Matrix instructions of a specification: read, refused, and part of what a device is."""

from __future__ import annotations

from dataclasses import replace

import pytest

import roller
from roller.errors import SpecError
from roller.hardware import Fragment, load_spec
from roller.hardware.read_matrix_fragment_specs import read_fragments
from tests.offenders import every

_GOOD = {"name": "mma.m16n8k16.f16.f32", "m": 16, "n": 8, "k": 16, "operand": "float16", "accumulator": "float32",
         "threads": 32}  # fmt: skip


def test_an_entry_is_read_whole():
    (found,) = read_fragments("x.yaml", [_GOOD])
    assert found == Fragment("mma.m16n8k16.f16.f32", 16, 8, 16, "float16", "float32", 32, "matrix")
    assert (found.family, Fragment(**found.to_dict())) == ("mma", found)
    assert (found.instructions, found.operand_copies, found.has_defined_lanes) == (1, 1, True)
    assert not {"arch", "instructions", "operand_copies"} & set(found.to_dict())


def test_what_a_device_makes_of_an_instruction_is_its_own():
    """Machine instructions and copies of operands are a specification's, not a family's."""
    spec = roller.load_spec("v100")
    found = spec.fragments[0]
    assert (found.instructions, found.operand_copies, found.has_defined_lanes) == (16, 2, False)
    assert Fragment(**found.to_dict()) == found
    tiles = {"shared": {"i": 64, "j": 64, "k": 32}, "register": {"i": 32, "j": 32}}
    expr = roller.ops.matmul(1024, 1024, 1024, dtype="float16")
    more = replace(spec, fragments=(replace(found, instructions=256),))
    seconds = [roller.predict(expr, s, tiles, fragment=found.name).terms["compute_s"] for s in (spec, more)]
    assert seconds[0] < seconds[1]


@every(
    ("change", "message"),
    [
        ({"m": 0}, "fragments.0.m"),
        ({"threads": "many"}, "fragments.0.threads"),
        ({"operand": "flaot16"}, "did you mean 'float16'"),
        ({"name": "tensor.m16"}, "expected a name that starts with"),
        ({"rate": "fma"}, "fragments.0.rate: expected one of"),
        ({"depth": 4}, "depth"),
    ],
)
def test_a_wrong_entry_is_one_clear_error(change, message):
    with pytest.raises(SpecError, match=message):
        read_fragments("x.yaml", [{**_GOOD, **change}])


def test_a_name_is_given_once():
    with pytest.raises(SpecError, match="given twice"):
        read_fragments("x.yaml", [_GOOD, _GOOD])


def test_fragments_are_part_of_what_a_device_is():
    spec = load_spec("a100")
    assert spec.fragments
    assert replace(spec, fragments=()).content_key != spec.content_key
