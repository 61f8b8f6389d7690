"""The sizes that an expression depends on, of those of its model."""

from __future__ import annotations

import pytest

from roller import ops
from roller.compiler.dynamic.dynamic_size_box import SizeBox
from roller.compiler.dynamic.relevant_sizes import relevant_sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicExpr
from roller.te.compat import te
from roller.te.reader import read
from roller.templates.common.options import ConstructOptions
from roller_runtime.core.size_formulas import Atom, Formula

BOX = SizeBox({"batch": (1, 8), "sequence": (1, 512)})
POINTS = [{"batch": b, "sequence": s} for b, s in ((3, 61), (2, 130), (7, 45), (5, 97), (4, 250), (8, 511), (6, 33))]


def own(make, box=BOX, points=POINTS):
    whole = [box.with_derived_sizes(p) for p in points]
    return relevant_sizes(SymbolicExpr.of([make(p) for p in whole], whole), whole, box, ConstructOptions())


def test_rows_of_a_product_are_one_size_whatever_it_is_the_product_of():
    found = own(lambda p: ops.matmul(p["batch"] * p["sequence"], 16, 8))
    assert dict(found.box.ends) == {"batch_sequence": (1, 4096)}
    assert found.at({"batch": 8, "sequence": 6}) == found.at({"batch": 3, "sequence": 16}) == {"batch_sequence": 48}
    assert found.expression.at({"batch_sequence": 48}) == ops.matmul(48, 16, 8)


def test_sizes_that_stand_alone_stay_apart():
    found = own(lambda p: ops.matmul(p["sequence"], p["sequence"], 8, batch=p["batch"]))
    assert set(found.box.ends) == {"batch", "sequence"}


def test_a_length_behind_a_stride_is_the_size_of_what_has_no_other():
    half = Formula(0, ((1, (Atom(("sequence",), "floor", 2),)),))
    box = SizeBox({"batch": (1, 8), "sequence": (2, 512)}, {"half": half})
    found = own(lambda p: ops.matmul(p["half"], 16, 8), box)
    assert dict(found.box.ends) == {"half": (1, 256)} and not found.box.derived
    assert found.at(box.with_derived_sizes({"batch": 3, "sequence": 41})) == {"half": 20}


def test_short_ranges_are_widened_for_code_generation():
    found = own(lambda p: ops.matmul(p["rows"], 16, 8), SizeBox({"rows": (2, 9)}), [{"rows": n} for n in range(3, 9)])
    assert found.widened_box(24).ends == {"rows": (2, 26)}
    assert found.widened_box(7).ends == found.box.ends == {"rows": (2, 9)}


@pytest.mark.parametrize("high", [12, 16])
def test_ranges_are_not_widened_beyond_the_capacity_of_what_they_read(high):
    """A decoder's keys lie in a cache of a fixed size."""

    def first_rows(p):
        x = te.placeholder((16, 8), name="X")
        return read([x, te.compute((p["total"], 8), lambda i, j: x[i, j] + 1.0, name="Y")])

    found = own(first_rows, SizeBox({"total": (1, high)}), [{"total": n} for n in range(3, 10)])
    assert found.widened_box(24).ends == {"total": (1, 16)}


def test_the_largest_sizes_of_a_widened_box_are_valid_together():
    def rows_before_and_now(p):
        x = te.placeholder((16, 8), name="X")
        y = te.compute((p["past"], p["new"], 8), lambda i, j, k: x[i + j, k] + 1.0, name="Y")
        return read([x, y])

    points = [{"past": a, "new": b} for a, b in ((3, 2), (2, 4), (4, 3), (3, 4), (2, 3), (4, 2))]
    found = own(rows_before_and_now, SizeBox({"past": (1, 4), "new": (1, 4)}), points)
    assert found.widened_box(24).ends == {"past": (1, 13), "new": (1, 4)}
    assert found.expression.at(found.widened_box(24).high)
