"""What kernels no longer do element by element: short rows through an epilogue, values that rows or stages share."""

import pytest

from roller import ops
from roller.expr import FUNCTIONS, Call, walk_scalar_tree
from roller.templates.cpu.rows.emit_shared_values import add_stages_for_shared_values
from tests.codegen.cpu_programs import assert_right, canonical, program


@pytest.mark.parametrize("width", [1, 2, 3, 7, 11, 14, 15, 17, 28])
def test_rows_shorter_than_their_vectors_go_through_the_epilogue(width):
    e = ops.depthwise_conv2d(2, 3, 5, width, 3, 3, 1, 1, epilogue=("bias", "add", "relu"))
    form = canonical(e)
    vector = next((a.name for a in reversed(form.anchor.spatial_axes) if a.extent == width), None)
    tile = 16 if width <= 16 else 32
    tiles = {vector: tile} if width > 1 else {}
    assert_right(e, program(form, "tiled", tiles, tiles, vector if width > 1 else None, staged=("X",)))


def specials(s):
    return [
        n.fn for n in walk_scalar_tree(s.body) if isinstance(n, Call) and FUNCTIONS[n.fn].instruction_class == "special"
    ]


def test_a_softmax_computes_an_exponential_and_a_division_once():
    stages = add_stages_for_shared_values(canonical(ops.softmax((6, 40)))).stages
    wide = {s.name: specials(s) for s in stages if len(s.axes) > 1}
    assert sorted(fn for found in wide.values() for fn in found) == ["exp"]
    assert [s.name for s in stages if len(s.axes) == 1] == ["Y@0"]


def test_a_root_of_a_norm_is_computed_once_per_row():
    stages = add_stages_for_shared_values(canonical(ops.layer_norm((6, 40)))).stages
    assert not any(specials(s) for s in stages if len(s.axes) > 1)


def test_rows_beyond_what_is_kept_and_expressions_without_rows_stay_as_they_are():
    long = canonical(ops.softmax((2, 70000)))
    assert add_stages_for_shared_values(long) is long
    total = canonical(ops.reduce("sum", (6, 40), (1,)))
    assert add_stages_for_shared_values(total) is total


@pytest.mark.parametrize("shape", [(5, 40), (3, 17), (4, 2, 33), (1, 257)])
def test_softmax_of_awkward_rows(shape):
    e = ops.softmax(shape)
    form = canonical(e)
    columns = form.anchor.reduction_axes[-1].name
    assert_right(e, program(form, "rows", {columns: 16}, {}, columns))
