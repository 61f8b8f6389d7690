"""Programs for matrix units with tiles chosen by a test, lowered and proven on the emulator."""

import roller
from roller.emulator import ORDERS, prove
from roller.runtime.check import check
from roller.templates.gpu.emit.cuda import lower
from roller.tile import RProgram
from roller.tile.matrix_operands import least_conflict_padding, make_operands

FRAGMENTS = {f.name: f for device in ("a100", "v100") for f in roller.load_spec(device).fragments}
BANKS = 32, 4


def program(expr, fragment, register, block, axes=("i", "j", "k"), **fields):
    """A program of ``expr`` with tiles given along the matrix axes; all others are 1."""
    fragment = FRAGMENTS[fragment]
    names = [a.name for a in expr.axes]
    tiles = [dict(zip(axes, extents, strict=True)) for extents in (register, block)]
    padding = [
        (o.tensor.name, least_conflict_padding(o, fragment, *BANKS)[0])
        for o in make_operands(expr.anchor, expr.tensors, axes, {**dict.fromkeys(names, 1), **tiles[1]})
    ]
    return RProgram(
        expr,
        "gpu",
        "matrix",
        tuple(
            (layer, tuple(t.get(n, 1) for n in names)) for layer, t in zip(("register", "shared"), tiles, strict=True)
        ),
        storage_padding=tuple(padding),
        staged=tuple(t for t, _ in padding),
        fragment=fragment,
        matrix_axes=axes,
        **fields,
    )


def artifact(made, expr=None, arch="sm_80"):
    """The CUDA C of a program; ``expr`` is the user's form of its expression."""
    return lower(made, expr or made.expr, arch, "test")


def assert_right(made, expr=None, arch="sm_80", orders=ORDERS):
    """The kernel computes its expression within the project's bound, whatever the order of threads."""
    verdict = prove(artifact(made, expr, arch), compare=lambda *a: check(*a).message, orders=orders)
    assert verdict.ok, str(verdict)
