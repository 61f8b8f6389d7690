"""Each alignment rule on programs written down by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roller import ops
from roller.hardware import load_spec
from roller.tile import RProgram
from roller.tile.alignment import (
    avoids_bank_conflicts,
    broken_rules,
    fills_execution_units,
    fills_transactions,
    limits_padding_waste,
    precompute_fills_transactions,
)
from tests.offenders import every

V100 = load_spec("v100")


def _matmul(register=(8, 4, 1), shared=(128, 64, 32), shape=(4096, 4096, 4096), **fields):
    fields = {"staged": ("A", "B"), "vector_axis": "j", "vector_elements": 4, "interleaved": True} | fields
    return RProgram(ops.matmul(*shape), "gpu", "tiled", (("register", register), ("shared", shared)), **fields)


def test_the_published_program_meets_every_rule_once_padded():
    assert broken_rules(_matmul(), V100) == ("bank",)
    assert broken_rules(_matmul(storage_padding=(("A", 4),)), V100) == ()


@pytest.mark.parametrize(("shared", "whole"), [((128, 64, 32), True), ((64, 16, 32), True), ((24, 16, 32), False)])
def test_threads_fill_whole_units(shared, whole):
    assert fills_execution_units(_matmul(shared=shared), V100, 1.0) is whole


def test_a_wavefront_is_64_threads():
    half = _matmul(shared=(64, 16, 32))
    assert half.threads_per_block == 32
    assert fills_execution_units(half, V100, 1.0)
    assert not fills_execution_units(half, load_spec("mi50"), 1.0)


@every(
    ("shape", "step", "aligned"),
    [
        ((4096, 4096, 4096), 8, True),  # 32 bytes of A, 256 of B
        ((4096, 4096, 4096), 4, False),  # 16 bytes of A
        ((4096, 4096, 4), 4, True),  # A's rows are spanned whole and contiguous
        ((4096, 4096, 4097), 8, False),  # a prime pitch: rows start anywhere
        ((4096, 4099, 4096), 8, False),
    ],
)
def test_runs_are_whole_transactions(shape, step, aligned):
    assert fills_transactions(_matmul(shared=(128, 64, step), shape=shape), V100, 1.0) is aligned


def test_transactions_of_many_programs_are_those_of_each():
    tiles = [(128, 64, 32), (128, 60, 32), (64, 64, 4), (16, 4096, 8)]
    alone = [fills_transactions(_matmul((1, 1, 1), t), V100, 1.0) for t in tiles]
    programs = [_matmul((1, 1, 1), t) for t in tiles]
    programs = [replace(p, expr=programs[0].expr) for p in programs]
    precompute_fills_transactions(programs, V100)
    assert len(programs[0].expr._memo["transactions"]) == len(tiles) and {True, False} == set(alone)
    assert [fills_transactions(p, V100, 1.0) for p in programs] == alone


def test_banks_are_enumerated_and_only_where_data_are_staged():
    assert not avoids_bank_conflicts(_matmul(interleaved=False), V100, 1.0)
    assert not avoids_bank_conflicts(_matmul(interleaved=False, storage_padding=(("A", 4),)), V100, 1.0)
    assert avoids_bank_conflicts(_matmul(storage_padding=(("A", 4),)), V100, 1.0)
    assert avoids_bank_conflicts(_matmul(interleaved=False, staged=()), V100, 1.0)


@pytest.mark.parametrize(
    ("m", "epsilon", "kept"), [(1024, 0.0, True), (1025, 0.0, False), (1025, 0.2, True), (65, 0.5, False)]
)
def test_padded_waste_is_bounded_by_epsilon(m, epsilon, kept):
    """1025 rows in tiles of 128 waste 127/1025; 65 rows waste 63/65."""
    assert limits_padding_waste(_matmul(shape=(m, 4096, 4096)), V100, epsilon) is kept


def test_on_a_cpu_the_vector_axis_holds_whole_vectors():
    spec = load_spec("cpu-avx2")
    tiles = (("register", (4, 16, 1)), ("l1", (4, 16, 64)), ("l2", (64, 64, 64)))
    program = RProgram(ops.matmul(64, 64, 64), "cpu", "tiled", tiles, (), ("A", "B"), "j", 8)
    assert fills_execution_units(program, spec, 1.0)
    ragged = (("register", (4, 12, 1)), ("l1", (4, 12, 64)), ("l2", (64, 60, 64)))
    assert not fills_execution_units(RProgram(program.expr, "cpu", "tiled", ragged, (), (), "j", 8), spec, 1.0)
    assert not fills_execution_units(RProgram(program.expr, "cpu", "tiled", tiles), spec, 1.0)
