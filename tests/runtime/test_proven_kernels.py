"""Tables of proven kernels: exact where kernels were proven, nearest elsewhere, and the same after JSON."""

from __future__ import annotations

import json

import pytest

from roller_runtime.core.size_formulas import Atom, Formula
from roller_runtime.plan.proven_kernels import NO_KERNEL, ProvenKernels


def size(*names):
    return Formula(0, ((1, (Atom(names),)),))


def table(kernels, *, is_complete, minimums=((), ())):
    made = ProvenKernels.of(
        {"rows": (1, 40), "width": (5, 9)}, {}, {"rows": size("batch", "length"), "width": size("width")}, kernels,
        is_complete=is_complete, minimums=minimums, predicted={(1, 5): [1.0, 2.0], (40, 9): [4.0, 3.0]},
    )  # fmt: skip
    return ProvenKernels.from_json(json.loads(json.dumps(made.to_json())))


def at(batch, length, width):
    return {"batch": batch, "length": length, "width": width}


def test_a_complete_table_has_no_kernel_for_other_sizes():
    known = table({(6, 5): 1, (7, 5): 0, (8, 9): NO_KERNEL, (40, 9): 1}, is_complete=True)
    assert known.kernel_at(at(2, 3, 5)) == known.kernel_at(at(3, 2, 5)) == 1
    assert known.kernel_at(at(1, 7, 5)) == 0 and known.kernel_at(at(10, 4, 9)) == 1
    assert known.kernel_at(at(1, 8, 9)) is None and known.kernel_at(at(1, 6, 6)) is None


def test_other_tables_take_the_nearest_kernel_that_supports_the_sizes():
    minimums = (((size("rows"), 1),), ((size("rows"), 16), (size("width"), 6)))
    known = table({(2, 5): 0, (3, 9): NO_KERNEL, (30, 9): 1}, is_complete=False, minimums=minimums)
    assert known.kernel_at(at(1, 3, 8)) == 0 and known.kernel_at(at(3, 9, 8)) == 1
    assert known.kernel_at(at(3, 9, 5)) == 0  # too narrow for the nearest kernel
    assert known.kernel_at(at(1, 3, 9)) is None  # proven to have none
    never = table({(30, 9): 0}, is_complete=False, minimums=(((Formula(0), 1),),) * 2)
    assert never.kernel_at(at(1, 30, 9)) == 0 and never.kernel_at(at(1, 29, 9)) is None


def test_predictions_are_those_of_the_nearest_sample():
    known = table({(2, 5): 0}, is_complete=True)
    assert known.predicted_at(1, at(1, 2, 5)) == 2.0 and known.predicted_at(0, at(4, 9, 9)) == 4.0


def test_malformed_tables_are_refused():
    data = table({(2, 5): 0}, is_complete=True).to_json()
    for key, value in (("kernels", [[7, 1]]), ("kernels", []), ("formulas", {}), ("seconds", [[1.0], [2.0]])):
        with pytest.raises(ValueError, match=r"proven kernels|predicted seconds"):
            ProvenKernels.from_json({**data, key: value})
