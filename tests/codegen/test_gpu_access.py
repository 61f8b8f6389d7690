"""Vector widths and masking are decided by arithmetic on the access, not by its source."""

from roller.expr import REDUCTION, Axis, Call, Index, Load, Stage, Tensor, Term, axis_index
from roller.templates.gpu.emit.padding_mask_analysis import padding_is_neutral
from roller.tile.memory_strides import mean_stride_elements
from roller.tile.row_stages_and_shared_loads import most_contiguous_axis
from roller.tile.vector_access_widths import is_vectorizable

ROW, COL = axis_index("i"), axis_index("j")


def test_aligned_rows_are_vectors():
    t = Tensor("A", (8, 16))
    assert is_vectorizable((ROW, COL), t, "j", 16, 4)
    assert not is_vectorizable((ROW, COL), t, "i", 8, 4)


def test_odd_pitch_offset_and_extent_are_not():
    assert not is_vectorizable((ROW, COL), Tensor("A", (8, 17)), "j", 16, 4)
    assert not is_vectorizable((ROW, axis_index("j", 1, 1)), Tensor("A", (8, 20)), "j", 16, 4)
    assert not is_vectorizable((ROW, COL), Tensor("A", (8, 18)), "j", 18, 4)
    assert not is_vectorizable((ROW, axis_index("j", 2)), Tensor("A", (8, 32)), "j", 16, 4)


def test_width_is_limited_by_bytes():
    assert not is_vectorizable((COL,), Tensor("A", (16,), "float64"), "j", 16, 4)
    assert is_vectorizable((COL,), Tensor("A", (16,), "float16"), "j", 16, 8)


def test_grouped_axis_is_a_vector_only_where_chunks_stay_in_the_image():
    def image(hw):
        return (Index((Term("p", 1, hw),)), axis_index("f"), Index((Term("p", 1, 1, hw),)))

    assert is_vectorizable(image(12), Tensor("Y", (4, 3, 12)), "p", 48, 4)
    # 14 is even but no multiple of 4: a chunk of four would straddle two images
    assert not is_vectorizable(image(14), Tensor("Y", (4, 3, 14)), "p", 56, 4)
    assert is_vectorizable(image(14), Tensor("Y", (4, 3, 14)), "p", 56, 2)


def test_mean_step_prefers_the_contiguous_axis():
    assert mean_stride_elements((ROW, COL), (8, 16), "j", 16) == 1
    assert mean_stride_elements((ROW, COL), (8, 16), "i", 8) == 16
    s = Stage(Tensor("Y", (16,)), (Axis("j", 16), Axis("i", 8, REDUCTION)), (COL,), Load("A", (ROW, COL)), "sum")
    assert most_contiguous_axis(s, {"A": Tensor("A", (8, 16))}) == "j"


def test_a_product_needs_every_moving_factor_zero():
    a, b = Load("A", (ROW, axis_index("k"))), Load("B", (axis_index("k"), COL))
    axes = (Axis("i", 4), Axis("j", 4), Axis("k", 5, REDUCTION))
    s = Stage(Tensor("C", (4, 4)), axes, (ROW, COL), Call("mul", (a, b)), "sum")
    assert padding_is_neutral(s, "k", {a: 0.0, b: 0.0}, 0.0)
    assert not padding_is_neutral(s, "k", {a: 0.0}, 0.0)  # inf * 0 would be NaN
    added = Stage(Tensor("C", (4, 4)), axes, (ROW, COL), Call("add", (a, b)), "sum")
    assert not padding_is_neutral(added, "k", {a: 0.0, b: 0.0}, 0.0)


def test_a_bare_load_needs_the_neutral_value():
    a = Load("A", (ROW, axis_index("k")))
    s = Stage(Tensor("C", (4,)), (Axis("i", 4), Axis("k", 5, REDUCTION)), (ROW,), a, "max")
    assert padding_is_neutral(s, "k", {a: float("-inf")}, float("-inf"))
    assert not padding_is_neutral(s, "k", {a: 0.0}, float("-inf"))
