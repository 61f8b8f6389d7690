"""The best V100 programs of the paper's operators compute the right thing: full-size tiles on small problems.

Every program is constructed for the benchmark's own size; its tiles are then put on a problem of few
channels (so that tiles reach past tensors too) and its CUDA C runs on the emulator, which checks every
address, alignment and barrier.
"""

from dataclasses import replace

import pytest

pytest.importorskip("tvm")

import roller
from benchmarks.tables import read_table
from roller.compiler.pipeline import lower
from roller.emulator import prove
from roller.runtime.check import check
from roller.templates.common.forms import canonical_forms
from roller.templates.common.options import ConstructOptions

ROWS = {r["id"]: r for r in read_table("operators.yaml")["operators"]}
SPEC = roller.load_spec("v100")

#: Row and the columns that make it small; every class, split reductions, odd and strided images, halos.
QUICK = [
    ("M2", {"M": 128, "N": 136, "K": 200}),
    ("C4", {"C": 16, "F": 72}),
    ("C12", {"C": 24, "H": 33, "W": 33}),
    ("C16", {"C": 32, "F": 70}),
    ("D5", {"C": 6}),
    ("P2", {"C": 6, "H": 33, "W": 33}),
    ("E13", {"shape": [2, 5, 11, 11]}),
]
SLOW = [
    ("M0", {"M": 300}), ("M1", {"N": 100, "K": 500}), ("M3", {"M": 200, "N": 136, "K": 64}),
    ("C0", {"C": 8, "F": 40}), ("C1", {"C": 8, "F": 40, "H": 20, "W": 20}), ("C2", {"C": 8, "F": 40}),
    ("C8", {"C": 40, "F": 170}), ("C9", {"C": 20, "H": 33, "W": 33}), ("C10", {"C": 32, "F": 100}),
    ("C11", {"C": 8, "F": 136}), ("C13", {"C": 24, "H": 33, "W": 33}), ("C15", {"C": 32, "F": 120}),
    ("C23", {"C": 6, "F": 40, "H": 20, "W": 20}), ("C25", {"C": 32, "F": 136}), ("C30", {"C": 32, "F": 40}),
    ("C33", {"C": 32, "F": 60}), ("C35", {"F": 20, "H": 50, "W": 50}), ("C36", {"H": 41, "W": 41}),
    ("C42", {"C": 16, "F": 70}), ("D0", {"C": 4, "H": 43, "W": 43}), ("D2", {"C": 4}), ("D6", {"C": 3}),
    ("D10", {"C": 3, "H": 33, "W": 33}), ("D13", {"C": 4}), ("D17", {"C": 6}), ("D18", {"C": 4}), ("D22", {"C": 4}),
    ("P0", {"C": 8}), ("P4", {"C": 4}), ("P6", {"C": 8}), ("P9", {"C": 3, "H": 43, "W": 43}), ("P10", {"C": 5}),
    ("R0", {"shape": [2, 33, 1024]}), ("R2", {"shape": [2, 40, 11, 11]}),
]  # fmt: skip


def small(name, columns):
    """The artifact of the row's best program on the small problem, and that problem."""
    best = roller.construct(roller.ops.from_spec(ROWS[name]), SPEC, top_k=1)[0].program
    row = {**ROWS[name], **columns}
    expr = roller.ops.from_spec(row, batch=None if "shape" in columns else 2)
    forms = canonical_forms(expr, ConstructOptions())
    form = next(f for f in forms if tuple(a.name for a in f.axes) == best.axis_names)
    return lower(replace(best, expr=form), expr, SPEC)


def assert_right(name, columns):
    verdict = prove(small(name, columns), compare=lambda *a: check(*a).message)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize(("name", "columns"), QUICK, ids=[n for n, _ in QUICK])
def test_program_of_operator(name, columns):
    assert_right(name, columns)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "columns"), SLOW, ids=[n for n, _ in SLOW])
def test_program_of_more_operators(name, columns):
    assert_right(name, columns)
