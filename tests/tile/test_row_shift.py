"""Shifts of rows: every vector of positions is aligned in every row, and positions hold all elements."""

from roller.expr import REDUCTION, Axis, Index, Load, Stage, Tensor, Term, axis_index
from roller.tile.misaligned_row_starts import row_shift
from tests.offenders import every


def summed(rows, columns, pitch, first=0):
    """Row sums of ``X[:, first : first + columns]``."""
    k = Axis("k", columns, REDUCTION)
    load = Load("X", (axis_index("i"), Index((Term("k"),), first)))
    stage = Stage(Tensor("Y", (rows,)), (Axis("i", rows), k), (axis_index("i"),), load, "sum")
    return stage, Tensor("X", (rows, pitch))


@every("width", [2, 4, 8])
@every(("columns", "pitch", "first"), [(33, 33, 0), (96, 101, 0), (97, 104, 0), (97, 104, 3)])
def test_positions_are_aligned_and_hold_the_row(columns, pitch, first, width):
    stage, x = summed(9, columns, pitch, first)
    shift = row_shift(stage, {"X": x}, width)
    assert shift.aligned_elements(stage.loads[0].index, x) == width
    for row in range(9):
        start = row * pitch + first
        behind = shift.start({"i": row}) % width
        assert (start - behind) % width == 0 and behind + columns <= shift.positions(columns)
    assert shift.positions(columns) % width == 0 and shift.positions(columns) < columns + 2 * width


def test_aligned_rows_are_not_shifted():
    stage, x = summed(9, 96, 104)
    assert row_shift(stage, {"X": x}, 8) is None and row_shift(stage, {"X": x}, 1) is None


def test_another_pitch_is_aligned_as_far_as_it_agrees():
    stage, x = summed(9, 33, 33)
    shift = row_shift(stage, {"X": x}, 4)
    at = stage.loads[0].index
    widths = {pitch: shift.aligned_elements(at, Tensor("Z", (9, pitch))) for pitch in (33, 37, 35, 34)}
    assert widths == {33: 4, 37: 4, 35: 2, 34: 1}
    assert shift.aligned_elements((axis_index("k"),), Tensor("gamma", (33,))) == 1
    assert shift.aligned_elements((axis_index("k"), axis_index("i")), Tensor("across", (33, 9))) == 1
