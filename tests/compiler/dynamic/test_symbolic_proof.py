"""No kernel runs at sizes for which it was not shown to be right: formulas wrong at one size nobody looked at."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from roller.compile_arguments import spec_and_local_device
from roller.compiler.dynamic import symbolic_build
from roller.compiler.dynamic.compile_kernels_for_all_sizes import SymbolicKernels, compile_symbolic
from roller.compiler.dynamic.dynamic_size_box import SizeBox
from roller.compiler.dynamic.kernel_choice import PricedKernel, rank_kernels_by_time
from roller.compiler.dynamic.prove_kernel_for_call_sizes import fault, find_wrong_kernels
from roller.compiler.dynamic.symbolic_programs import SymbolicExpr
from roller.core.formula_fitting import FormulaFitter
from roller.errors import NoCandidateError
from roller.ops import matmul, softmax
from roller.runtime.check_and_time_cpu_kernels import CpuBench
from roller.templates.common.options import ConstructOptions
from roller_runtime.core.size_formulas import Atom, Formula

BOX = SizeBox({"rows": (7, 200)})
POINTS = [{"rows": n} for n in (7, 11, 20, 51, 90, 150, 200)]
UNSEEN = 173


class Planted(FormulaFitter):
    """Finds formulas that are off by one at one size, and nowhere else."""

    def fit(self, values):
        found = super().fit(values)
        if found is None or not found.terms or found == Formula(0, ((1, (Atom(("rows",)),)),)):
            return found
        steps = ((-1, (Atom(("rows",), "floor", UNSEEN),)), (1, (Atom(("rows",), "floor", UNSEEN + 1),)))
        return Formula(found.const, (*found.terms, *steps))


@pytest.fixture(scope="module")
def spec():
    return spec_and_local_device("cpu")[0].emitted.sustained


@pytest.fixture(scope="module")
def expression():
    return SymbolicExpr.of([matmul(p["rows"], 33, 24) for p in POINTS], POINTS)


@pytest.fixture(scope="module")
def right(spec, expression):
    return compile_symbolic({"k": (expression, ())}, POINTS, BOX, spec, ConstructOptions())["k"]


@pytest.fixture(scope="module")
def wrong(spec, expression):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symbolic_build, "FormulaFitter", Planted)
        return compile_symbolic({"k": (expression, ())}, POINTS, BOX, spec, ConstructOptions())["k"]


def test_kernels_are_the_code_of_every_size(right):
    for rows in range(7, 201, 9):
        sizes = {"rows": rows}
        assert not fault(right.kernels[right.best(sizes)], right.own.expression.at(sizes), sizes, right.spec.units)


def test_a_formula_that_is_wrong_at_one_size_does_not_run_there(wrong):
    for rows in (UNSEEN - 1, UNSEEN + 1, 7, 200):
        assert wrong.kernels[wrong.best({"rows": rows})].takes({"rows": rows})
    sizes = {"rows": UNSEEN}
    expression, order = wrong.own.expression.at(sizes), rank_kernels_by_time(wrong.priced, sizes, wrong.spec)
    first = order[0]
    right = [n for n in order if not fault(wrong.kernels[n], expression, sizes, wrong.spec.units)]
    assert first not in right
    if right:  # one in whose code no such number depends on sizes: a run says so, too
        assert wrong.best(sizes) == right[0]
        assert not fault(replace(wrong.kernels[right[0]], code=""), expression, sizes, wrong.spec.units)
    else:
        with pytest.raises(NoCandidateError, match="got none that is right"):
            wrong.best(sizes)
    alone = SymbolicKernels(wrong.own, (wrong.priced[first],), wrong.spec)
    with pytest.raises(NoCandidateError, match=r"a kernel for \{'rows': 173\}, got none that is right: .*of .*rows"):
        alone.best(sizes)


def test_code_of_another_kind_runs_before_it_is_used(right, wrong):
    def at(kernels, rows):
        sizes = {"rows": rows}
        first = rank_kernels_by_time(kernels.priced, {"rows": UNSEEN}, kernels.spec)[0]
        other = replace(kernels.kernels[first], code="of another kind")
        return fault(other, kernels.own.expression.at(sizes), sizes, kernels.spec.units)

    assert not at(right, UNSEEN) and not at(wrong, UNSEEN + 1)
    assert at(wrong, UNSEEN).startswith("at {'rows': 173}: ")


def test_the_next_kernel_is_taken_where_the_first_is_wrong(caplog):
    def kernel(number):
        program = SimpleNamespace(at=lambda sizes: (number, sizes["s"]))
        return SimpleNamespace(number=number, program=program, takes=lambda sizes: sizes["s"] > 1)

    def predicted(programs, sizes, _spec):
        return [([1, 2, 3] if s < 12 else [9, 1, 10])[n] for n, s in (p.at(sizes) for p in programs)]

    own = SimpleNamespace(expression=SimpleNamespace(at=lambda sizes: SimpleNamespace(name="sum")), at=dict)
    several = tuple(PricedKernel(kernel(n), ({"s": 8},), np.ones(1), {}) for n in range(3))
    asked = []

    def answer(kernel, _expression, sizes, _spec):
        asked.append((kernel.number, sizes["s"]))
        return "wrong" if kernel.number == 0 or sizes["s"] == 7 else ""

    room = SimpleNamespace(predicted=predicted, fault=answer, UNUSED=logging.WARNING)
    made = SymbolicKernels(
        own, several, SimpleNamespace(traits=SimpleNamespace(module_for={"compiler.dynamic": room}.get))
    )
    with caplog.at_level(logging.WARNING, "roller"):
        assert [made.best({"s": s}) for s in (3, 3, 60)] == [1, 1, 1]
    assert asked == [(0, 3), (1, 3), (1, 60)] and "sum: a kernel of the range is not used: wrong" in caplog.text
    with pytest.raises(NoCandidateError, match="got none that is right: wrong; wrong; wrong"):
        made.best({"s": 7})
    with pytest.raises(NoCandidateError, match=r"got none\. Compile"):
        made.best({"s": 1})


def test_numbers_that_are_too_long_on_the_way_are_seen():
    third = Formula(0, ((1, (Atom(("s", "s", "s"), "ceil", 1 << 20),)),))
    assert third.at({"s": 2000}) < 1 << 31 < third.most({"s": 2000})
    assert Formula(-5, ((-3, (Atom(("s",)),)),)).most({"s": 4}) == 17


def test_kernels_take_no_length_shorter_than_a_tile_of_a_later_stage(spec, caplog):
    """The anchor of a softmax reduces its rows by single elements; the stages after it store whole vectors."""
    points = [{"columns": n} for n in (2, 11, 20, 51, 90, 150, 200)]
    softmaxes = SymbolicExpr.of([softmax((12, p["columns"])) for p in points], points)
    box = SizeBox({"columns": (1, 200)})
    with caplog.at_level(logging.INFO, "roller"):
        found = compile_symbolic({"k": (softmaxes, ())}, points, box, spec, ConstructOptions())["k"]
    assert not [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert any(k.shortest for k in found.kernels)
    for columns in (1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 129):
        sizes = {"columns": columns}
        bench = CpuBench(softmax((12, columns)), fenced=True)
        taken = {n: k.at(sizes, bench.expression) for n, k in enumerate(found.kernels) if k.takes(sizes)}
        assert taken and not find_wrong_kernels(taken, bench), columns


def test_what_was_timed_is_chosen_by_its_times(spec, expression, monkeypatch):
    """From construction to the kernel of a call; seconds are planted, so that nothing depends on the machine."""
    times = {}

    def profile(self, artifacts, timed=True, budget_s=0.0):
        records = measured(self, artifacts, timed=False)
        if not timed:
            return records
        rows = self.expression.output_tensors[0].shape[0]
        several = sorted(artifacts, key=int, reverse=rows > 60)  # the order of the fastest turns with the rows
        times[rows] = {n: 1e-3 * (1 + k) for k, n in enumerate(several)}
        return {n: replace(r, status="measured", measured_s=times[rows][n]) for n, r in records.items()}

    measured = CpuBench.profile
    monkeypatch.setattr(CpuBench, "profile", profile)
    made = compile_symbolic({"k": (expression, ())}, POINTS, BOX, spec, ConstructOptions(), passing_bytes={})["k"]
    assert len(times) > 2 and not made.doubt
    for column, sizes in enumerate(made.priced[0].places):
        known = {n: j.measured[column] for n, j in enumerate(made.priced) if column in j.measured}
        if len(known) == len(made.priced):
            assert made.best(sizes) == min(known, key=known.__getitem__)
            assert not fault(made.kernels[made.best(sizes)], expression.at(sizes), sizes, spec.units)
    assert len({made.best(p) for p in made.priced[0].places}) > 1
