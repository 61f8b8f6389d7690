"""Sampled proofs: minimums are raised where a kernel's code is not that of its program."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from roller.compiler.dynamic import prove_all_sizes
from roller.compiler.dynamic.dynamic_size_box import SizeBox
from roller_runtime.core.size_formulas import Atom, Formula

WIDTH, HEIGHT = (Formula(0, ((1, (Atom((name,)),)),)) for name in ("w", "h"))
BOX = SizeBox({"h": (1, 9), "w": (1, 51)})
EVERYTHING = np.array([(h, w) for h in range(1, 10) for w in range(1, 52)])


def operator(monkeypatch, fault, formulas=()):
    """Return an operator with one kernel for widths from 32, whose code differs where ``fault`` says."""
    kernel = SimpleNamespace(minimums=((HEIGHT, 1), (WIDTH, 32)), formulas=formulas)
    monkeypatch.setattr(prove_all_sizes, "_kernel", lambda kernels, number: kernel)
    monkeypatch.setattr(prove_all_sizes, "static_fault", lambda kernel, sizes, cores: fault(sizes))
    kernels = SimpleNamespace(own=SimpleNamespace(box=BOX), priced=[None], spec=SimpleNamespace(units=2))
    least = prove_all_sizes._least_sizes_of_kernels(kernels, EVERYTHING)
    return prove_all_sizes._Operator(
        kernels, [], False, chosen={(9, 51): 0}, usable={(9, 51): frozenset((0,))}, at_minimums=least
    )


@pytest.mark.parametrize(("wrong_to", "least"), [(31, 32), (32, 33), (34, 35)])
def test_a_kernel_for_two_tiles_does_not_run_one(monkeypatch, wrong_to, least):
    def fault(sizes):  # code for small heights has another form, which only a run can judge
        return None if sizes["h"] < 4 else "98 is 66" if sizes["w"] <= wrong_to else ""

    assert operator(monkeypatch, fault)._minimums(0) == [(HEIGHT, 1), (WIDTH, least)]


def test_a_kernel_that_is_wrong_at_all_least_sizes_runs_nowhere_unproven(monkeypatch):
    made = operator(monkeypatch, lambda sizes: "wrong")
    assert made._minimums(0) == prove_all_sizes._NEVER
    made.chosen.clear()  # kernels without proofs run nowhere and are not compared
    assert made._minimums(0) == ((HEIGHT, 1), (WIDTH, 32))


def test_a_kernel_whose_numbers_overflow_at_the_largest_sizes_runs_only_where_it_was_proven(monkeypatch):
    enormous = Formula(0, ((1 << 30, (Atom(("w",)),)),))
    made = operator(monkeypatch, lambda sizes: "", formulas=(enormous,))
    assert made._minimums(0) == prove_all_sizes._NEVER


def test_sizes_where_no_proven_kernel_may_run_are_proven_too(monkeypatch):
    made = operator(monkeypatch, lambda sizes: "")
    asked = []

    def prove(job):
        asked.extend(job[1])
        return {values: prove_all_sizes._Verdict(frozenset((0,)), proven=0) for values in job[1]}

    monkeypatch.setattr(prove_all_sizes, "_prove_without_running", prove)
    monkeypatch.setattr(made.kernels, "priced", [SimpleNamespace(places=(), predicted=())])
    monkeypatch.setattr(made.kernels.own, "formulas", {"h": HEIGHT, "w": WIDTH}, raising=False)
    table = made.table_without_gaps(EVERYTHING)
    assert asked and all(w < 32 for _, w in asked), "the kernel's own least width"
    assert all(table.kernel_for(values) == 0 for values in EVERYTHING.tolist())
