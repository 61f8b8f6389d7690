"""Every mechanism of the construction can be switched off; bad options and impossible demands say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

import roller
from roller import ConstructOptions, ops
from roller.errors import NoCandidateError, RollerError
from roller.templates.common.forms import canonical_forms
from tests.construction.rules import padded_waste
from tests.offenders import every

FEW_BLOCKS = ops.matmul(128, 1000, 4032)
ODD_IMAGE = ops.conv2d(32, 64, 7, 7, 64, 3, 3, padding=1)


def _construct(expr, device="v100", **options):
    return roller.construct(expr, device=device, options=ConstructOptions(**options))


def _axes(expr, **options):
    return {c.program.axis_names for c in _construct(expr, **options)}


def test_axis_fusion():
    expr = ops.elementwise("relu", (17, 11, 3))
    fused = _construct(expr)
    assert {c.program.axis_names for c in fused} == {("d0*d1*d2",)}
    assert fused[0].program.axes[0].extent == 561
    assert _axes(expr, axis_fusion=False) == {("d0", "d1", "d2")}


def test_axis_grouping():
    grouped = ("f", "n*ho*wo", "c*kh*kw")
    assert grouped in _axes(ODD_IMAGE, winograd=False)
    assert _axes(ODD_IMAGE, axis_grouping=False) == {("n", "f", "ho", "wo", "c", "kh", "kw")}
    forms = canonical_forms(ODD_IMAGE, ConstructOptions())
    assert [tuple(a.name for a in f.axes) for f in forms] == [("n", "f", "ho", "wo", "c", "kh", "kw"), grouped]


def test_split_k():
    with_split, without = _construct(FEW_BLOCKS), _construct(FEW_BLOCKS, split_k=False)
    assert with_split[0].program.split_k > 1
    assert {c.program.split_k for c in without} == {1}
    assert with_split[0].estimate.seconds < without[0].estimate.seconds
    assert {c.program.split_k for c in _construct(ops.matmul(4096, 4096, 1024))} == {1}


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("device", ["v100", "cpu-avx2"])
def test_epsilon_bounds_the_padded_waste(epsilon, device):
    for expr in (ops.matmul(200, 112, 96), ops.elementwise("relu", (96, 40)), ops.reduce("sum", (96, 128), (1,))):
        found = _construct(expr, device, epsilon=epsilon)
        assert found and all(padded_waste(c.program) <= epsilon for c in found)
        assert not any("shape" in c.program.relaxed for c in found)


@pytest.mark.parametrize("device", ["v100", "mi50", "cpu-avx2"])
def test_allow_padding_false_is_honoured(device):
    shapes = (ops.matmul(96, 80, 50), ops.elementwise("add", (96, 80)), ops.reduce("max", (64, 256), (1,)))
    for expr in shapes:
        found = roller.construct(replace(expr, allow_padding=False), device=device)
        assert found and all(padded_waste(c.program) == 0 for c in found)


@pytest.mark.parametrize("device", ["v100", "cpu-avx2"])
@pytest.mark.parametrize(
    "expr", [ops.matmul(97, 89, 50), ops.elementwise("relu", (17, 11, 3))], ids=["matmul", "elementwise"]
)
def test_no_program_without_padding_is_one_clear_error(expr, device):
    with pytest.raises(NoCandidateError, match=rf"{expr.name} on {device}: .*allow_padding=False.*allow_padding=True"):
        roller.construct(replace(expr, allow_padding=False), device=device)


def test_units_build_for_a_share_of_the_device():
    seconds = {u: _construct(FEW_BLOCKS, units=u)[0].estimate.seconds for u in (1, 20, 80, None)}
    assert seconds[1] > seconds[20] > seconds[80] == seconds[None]
    assert _construct(FEW_BLOCKS, units=200)[0].estimate.seconds == seconds[None]
    assert {c.program.split_k for c in _construct(FEW_BLOCKS, units=1)} == {1}


def test_top_k_is_a_prefix_of_a_larger_one_and_overrides_the_options():
    ten = _construct(ODD_IMAGE)
    assert len(ten) == 10
    three = roller.construct(ODD_IMAGE, device="v100", top_k=3, options=ConstructOptions(top_k=7))
    assert len(three) == 3
    assert three[0].estimate == ten[0].estimate


def test_a_larger_pool_never_ranks_worse():
    small = _construct(ODD_IMAGE, pool=256, axis_grouping=False)[0].estimate.seconds
    large = _construct(ODD_IMAGE, pool=8192, axis_grouping=False)[0].estimate.seconds
    assert large <= small


@every(
    ("options", "field"),
    [
        ({"top_k": 0}, "top_k"),
        ({"top_k": 2.5}, "top_k"),
        ({"epsilon": -0.1}, "epsilon"),
        ({"top_k": True}, "top_k"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"epsilon": "small"}, "epsilon"),
        ({"units": 0}, "units"),
        ({"units": 1.5}, "units"),
        ({"shrink": "no"}, "shrink"),
        ({"axis_fusion": 1}, "axis_fusion"),
        ({"policy": "sorcery"}, "policy"),
        ({"policy": "sokoban"}, "policy"),
        ({"pool": 5}, "pool"),
        ({"pool": "all"}, "pool"),
    ],
)
def test_options_out_of_range_name_their_field(options, field):
    with pytest.raises(RollerError, match=rf"ConstructOptions\.{field}: expected"):
        ConstructOptions(**options)


def test_options_of_another_type_are_refused():
    with pytest.raises(RollerError, match="options: expected a ConstructOptions, got dict"):
        roller.construct(FEW_BLOCKS, device="v100", options={"top_k": 3})


def test_options_are_plain_data_with_a_default_each():
    data = ConstructOptions(top_k=3, units=7).to_dict()
    assert ConstructOptions(**data) == ConstructOptions(top_k=3, units=7)
    assert set(data) >= {"top_k", "shrink", "axis_fusion", "axis_grouping", "epsilon", "split_k", "units", "policy"}
