"""Einstein sums against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from roller.models.onnx.lowering_registry import Unsupported
from tests.models.onnx.lowering_oracle import agrees, expressions, node
from tests.offenders import every


def _array(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@every(
    ("equation", "shapes"),
    [("ij->ji", [(3, 4)]), ("ij->i", [(3, 4)]), ("ii->i", [(3, 3)]), ("...ii->...i", [(2, 3, 3)]),
     ("i,i", [(5,), (5,)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]), ("ij,jk", [(3, 4), (4, 5)]),
     ("...ij,...jk->...ik", [(2, 3, 4), (4, 5)]),
     ("bhid,bhjd->bhij", [(2, 2, 3, 4), (2, 2, 5, 4)]), ("i,j->ij", [(3,), (4,)]), ("ij->", [(3, 4)]),
     ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]), ("aB,Bc->ac", [(2, 3), (3, 4)]), ("ii", [(3, 3)])],
)  # fmt: skip
def test_equations(equation, shapes):
    arrays = [_array(s, n) for n, s in enumerate(shapes)]
    wanted = np.asarray(np.einsum(equation, *arrays))
    agrees(node("Einsum", len(shapes), equation=equation), arrays, wanted=[wanted])


def test_a_product_of_matrices_has_the_form_of_one():
    ((expr, _),) = expressions(node("Einsum", 2, equation="bij,bjk->bik"), [_array((2, 3, 4)), _array((2, 4, 5))])
    assert [(a.extent, a.kind) for a in expr.axes] == [(2, "spatial"), (3, "spatial"), (5, "spatial"), (4, "reduction")]


def test_what_does_not_fit_is_refused():
    with pytest.raises(Unsupported, match="does not fit"):
        agrees(node("Einsum", 1, equation="ijk->i"), [_array((3, 4))], wanted=[_array(3)])
