"""Kernels that construction would not choose on such sizes: every form of every template, to be checked on a device.

Every fragment, depth of a step (which is the swizzle), transposition and number of stages of the matrix units, blocks
of one and several groups of threads, two blocks of a unit side by side; and of the other templates one program of every
form that construction knows. Expressions are small and odd, so that every output is compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from roller import ops
from roller.construction.constructor import construct_candidates, program_from_row
from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import RollerError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec, list_specs, load_spec
from roller.perf.estimate import Estimate
from roller.perf.tile_batch import batch_of
from roller.templates.common.forms import canonical_forms
from roller.templates.common.options import ConstructOptions
from roller.templates.price_with_templates import estimate_programs
from roller.tile import RProgram

#: Fragments along k of one step, and copies of staged tiles.
_DEPTHS, _STAGES = (1, 2, 4, 8), (1, 2, 3, 4, 5)
_FEW_STAGES = (1, 3)
_TRANSPOSED = ((False, False), (True, True), (False, True), (True, False))
#: Extents along n of instructions for groups of warps, beside those a specification names.
_WIDTHS = (16, 32, 96, 160, 192, 224, 256)
#: Candidates of construction among which forms are looked for, and forms kept of one expression.
_CONSTRUCTED, _FORMS = 48, 6
#: Sizes of products: whole vectors with an overhang in every tile, and rows that are not aligned.
_SIZES, _ODD = (136, 264, 328), (67, 75, 133)
#: A product whose blocks fill every unit twice.
_LARGE = (2304, 2304, 520)


@dataclass(frozen=True)
class Variant:
    """One kernel to be checked.

    Parameters
    ----------
    id
        Its name among those of its expression.
    program
        What is lowered.
    estimate
        What the model says of it: registers and resident blocks decide how it is built and launched.
    """

    id: str
    program: RProgram
    estimate: Estimate


@dataclass(frozen=True)
class Wanted:
    """All kernels of one expression.

    Parameters
    ----------
    id
        Its name in the bundle; the part before the first dash is the family.
    expression
        What they compute.
    variants
        The kernels.
    refused
        ``(name, reason)`` of those that the device or the template does not take.
    """

    id: str
    expression: TensorExpr
    variants: tuple[Variant, ...]
    refused: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Tiles:
    """Tiles of a product: of a group of threads, groups of a block along m and n, fragments along k of a step."""

    group: tuple[int, int]
    groups: tuple[int, int] = (1, 1)
    depth: int = 2
    stages: int = 3
    split_k: int = 1
    raster: int = 1

    @property
    def name(self) -> str:
        """What tells it from the others."""
        tile = "x".join(str(a * b) for a, b in zip(self.group, self.groups, strict=True))
        more = f"-split{self.split_k}" * (self.split_k > 1) + f"-raster{self.raster}" * (self.raster > 1)
        return f"{tile}-d{self.depth}-s{self.stages}{more}"


def fragments(spec: DeviceSpec) -> list[Fragment]:
    """Return the matrix instructions that kernels for a device can hold, those of older devices among them."""
    own = [f for f in spec.fragments if f.emitted]
    known = {f.name for f in own}
    alike = (load_spec(n) for n in list_specs())
    others = [f for s in alike if s.target.get("language") == spec.target["language"] for f in s.fragments]
    families = {f.family for f in own}
    for f in others:  # an instruction that only a newer architecture has names it
        if own and f.emitted and not f.arch and f.name not in known and f.threads == spec.teu.lanes:
            known.add(f.name)
            own.append(f)
    return own if families else []


def variants(spec: DeviceSpec) -> Iterator[Wanted]:
    """Yield all kernels, by expression, those of matrix units first."""
    found = fragments(spec)
    alone = [f for f in found if f.reads_scratchpad]
    for operand in dict.fromkeys(f.operand for f in alone):
        yield from _warp_groups(spec, [f for f in alone if f.operand == operand])
    for f in found:
        if not f.reads_scratchpad:
            yield from _warps(spec, f)
    for name, expression in _others().items():
        yield _constructed(spec, name, expression)


def _product(f: Fragment, sizes: Sequence[int], transposed: tuple[bool, bool], **fields: object) -> TensorExpr:
    kinds: dict[str, object] = {"dtype": f.operand, "acc_dtype": f.accumulator, **fields}
    return ops.matmul(*sizes, transpose_a=transposed[0], transpose_b=transposed[1], **kinds)  # type: ignore[arg-type]


def _letters(transposed: tuple[bool, bool]) -> str:
    return "".join("t" if t else "n" for t in transposed)


def _warp_groups(spec: DeviceSpec, forms: Sequence[Fragment]) -> Iterator[Wanted]:
    """Yield what instructions of one operand that read scratchpad by themselves are tried with."""
    first = min(forms, key=lambda f: f.n)
    n, kind = first.n, first.operand
    wide = {f.n: f for f in (*forms, *(_as_wide(first, w) for w in _WIDTHS))}
    for ta, tb in _TRANSPOSED:
        full = ta == tb and first is forms[0] and kind == "float16"
        stages = _STAGES if full else _FEW_STAGES
        tiles = [(first, _Tiles((64, n), (2, 1), d, s)) for d, s in itertools.product(_DEPTHS, stages)]
        if not ta:
            tiles += [(f, _Tiles((64, f.n), (1, 1), 4, 4)) for _, f in sorted(wide.items()) if f is not first]
        widest = max(forms, key=lambda f: f.n)
        tiles += [(widest, _Tiles((64, widest.n), (2, 1), 4, 3)), (first, _Tiles((128, 2 * n), (1, 2), 2, 3)),
                  (first, _Tiles((64, n), (1, 1), 4, 3, split_k=3)), (first, _Tiles((64, n), (1, 1), 4, 4, raster=2)),
                  (first, _Tiles((64, n), (1, 4), 4, 3))]  # fmt: skip
        yield _matrix(spec, f"wgmma-{kind}-{_letters((ta, tb))}", _product(first, _SIZES, (ta, tb)), tiles)
        odd = [(first, _Tiles((64, n), (1, 1), d, 2)) for d in _DEPTHS[:3]]
        yield _matrix(spec, f"wgmma-{kind}-{_letters((ta, tb))}-odd", _product(first, _ODD, (ta, tb)), odd)
    some = [(first, _Tiles((64, n), (2, 1), 4, s)) for s in (2, 3)]
    yield _matrix(spec, f"wgmma-{kind}-bias", _product(first, _SIZES, (False, False), epilogue=("bias", "relu")), some)
    yield _matrix(spec, f"wgmma-{kind}-batch", _product(first, (72, 136, 88), (False, True), batch=2), some)
    conv = ops.conv2d(2, 24, 9, 9, 40, 3, 3, 1, 1, layout="NHWC", dtype=kind)
    yield _matrix(spec, f"wgmma-{kind}-conv", conv, [(first, _Tiles((64, n), (1, 1), 2, 3))], ("wo", "f", "c"))
    # Two blocks of a unit side by side, and one block of two groups that takes most of its scratchpad.
    resident = [(wide[2 * n], _Tiles((64, 2 * n), (2, 1), 4, s)) for s in (2, 3)] if 2 * n in wide else []
    resident += [(f, _Tiles((64, f.n), (2, 1), 4, s)) for f in forms for s in (3, 4)]
    yield _matrix(spec, f"wgmma-{kind}-resident", _product(first, _LARGE, (False, False)), resident)


def _as_wide(f: Fragment, n: int) -> Fragment:
    """Return the same instruction with another extent along n."""
    return Fragment(f.name.replace(f"n{f.n}k", f"n{n}k"), f.m, n, f.k, f.operand, f.accumulator, f.threads, f.rate,
                    f.arch, f.instructions, f.operand_copies)  # fmt: skip


def _warps(spec: DeviceSpec, f: Fragment) -> Iterator[Wanted]:
    """Yield what an instruction of one warp is tried with."""
    stages = (1, 2, 3, 4) if f.has_defined_lanes else (1, 2)
    for ta, tb in _TRANSPOSED:
        tiles = [_Tiles((2 * f.m, 4 * f.n), (2, 2), 2, s) for s in stages]
        tiles += [_Tiles((f.m, 2 * f.n), (2, 2), d, 2) for d in (1, 4)]
        tiles += [_Tiles((2 * f.m, 2 * f.n), (1, 2), 2, 2, split_k=3), _Tiles((2 * f.m, 4 * f.n), (2, 1), 2, 2, 1, 2)]
        letters = _letters((ta, tb))
        yield _matrix(spec, f"{f.name}-{letters}", _product(f, _SIZES, (ta, tb)), [(f, t) for t in tiles])
        odd = [(f, _Tiles((2 * f.m, 2 * f.n), (2, 2), 2, s)) for s in stages[:2]]
        yield _matrix(spec, f"{f.name}-{letters}-odd", _product(f, _ODD, (ta, tb)), odd)


def _matrix(
    spec: DeviceSpec, name: str, expression: TensorExpr, tiles: Sequence[tuple[Fragment, _Tiles]],
    axes: tuple[str, str, str] = ("i", "j", "k"),
) -> Wanted:  # fmt: skip
    found, refused = [], []
    for f, t in tiles:
        own = f"n{f.n}-{t.name}" if f.reads_scratchpad else t.name
        try:
            found.append(_priced(own, _program(spec, expression, f, t, axes), spec))
        except RollerError as err:
            refused.append((own, str(err)))
    return Wanted(name, expression, tuple(found), tuple(refused))


def _program(spec: DeviceSpec, expression: TensorExpr, f: Fragment, t: _Tiles, axes: Sequence[str]) -> RProgram:
    """Return the program of some tiles, laid out as construction lays its own out."""
    form = expression if set(axes) <= {a.name for a in expression.axes} else canonical_forms(
        expression, ConstructOptions()
    )[0]  # fmt: skip
    m, n, k = axes
    register = {m: t.group[0], n: t.group[1], k: f.k}
    block = {m: t.group[0] * t.groups[0], n: t.group[1] * t.groups[1], k: t.depth * f.k}
    fast, slow = [layer.name for layer in spec.memory_layers if layer.tiled][:2]
    tiles = tuple((x, tuple(e.get(a.name, 1) for a in form.axes)) for x, e in ((fast, register), (slow, block)))
    staged = tuple(dict.fromkeys(x.tensor for x in form.anchor.loads))
    made = RProgram(form, "gpu", "matrix", tiles, staged=staged, split_k=t.split_k, stages=t.stages, raster=t.raster,
                    fragment=f, matrix_axes=tuple(axes))  # fmt: skip
    return program_from_row(batch_of([made]).without_vectors(), 0, spec)


def _priced(name: str, program: RProgram, spec: DeviceSpec) -> Variant:
    (estimate,) = estimate_programs([program], spec)
    return Variant(name, program, estimate)


def _others() -> Mapping[str, TensorExpr]:
    """Return expressions that the other templates compute, small and odd."""
    return {
        "tiled-f32": ops.matmul(200, 137, 331),
        "tiled-tt": ops.matmul(133, 136, 264, transpose_a=True, transpose_b=True),
        "tiled-batch": ops.matmul(65, 96, 64, batch=3), "tiled-s8": ops.matmul(136, 136, 136, dtype="int8"),
        "tiled-split": ops.matmul(33, 35, 3000), "tiled-bias": ops.matmul(97, 61, 53, epilogue=("bias", "relu")),
        "tiled-conv": ops.conv2d(2, 19, 13, 11, 35, 3, 3, padding=1),
        "tiled-strided": ops.conv2d(1, 16, 17, 15, 24, 5, 5, stride=2, layout="NHWC"),
        "tiled-row": ops.matmul(1, 1000, 2048, transpose_b=True),
        "winograd": ops.conv2d(2, 32, 13, 11, 40, 3, 3, padding=1),
        "winograd-bias": ops.conv2d(1, 33, 9, 14, 24, 3, 3, padding=1, layout="NHWC", epilogue=("bias", "relu")),
        "window": ops.depthwise_conv2d(2, 21, 19, 23, 3, 3, padding=1),
        "window-strided": ops.depthwise_conv2d(1, 12, 18, 16, 5, 5, padding=2, stride=2, epilogue=("bias", "relu")),
        "window-max": ops.pool2d("max", 2, 13, 17, 15, 3, 3, padding=1, stride=2),
        "window-avg": ops.pool2d("avg", 2, 5, 19, 23, 2, 2, stride=2, dtype="float16"),
        "rows-softmax": ops.softmax((37, 1003)), "rows-softmax-f16": ops.softmax((64, 1024), dtype="float16"),
        "rows-columns": ops.softmax((3, 40, 52), axis=1), "rows-norm": ops.layer_norm((33, 768)),
        "rows-norm-f16": ops.layer_norm((9, 136), dtype="float16"), "rows-long": ops.softmax((5, 20011)),
        "rows-sum": ops.reduce("sum", (37, 1210), (1,)), "rows-across": ops.reduce("sum", (1210, 76), (0,)),
        "rows-split": ops.reduce("max", (3, 200000), (1,)), "rows-argmax": ops.reduce("argmax", (9, 770), (1,)),
        "streaming": ops.elementwise(("add", "relu"), (123, 457)),
        "streaming-gelu": ops.elementwise("gelu", (64, 640), dtype="float16"),
        "streaming-bf16": ops.elementwise("tanh", (10007,), dtype="bfloat16"),
    }  # fmt: skip


def _constructed(spec: DeviceSpec, name: str, expression: TensorExpr) -> Wanted:
    """Return one program of every form that construction makes of an expression, the best one of each."""
    options = ConstructOptions(top_k=_CONSTRUCTED)
    first: dict[tuple[object, ...], Variant] = {}
    try:
        found = construct_candidates(expression, spec.emitted, options)
    except RollerError as err:
        return Wanted(name, expression, (), ((name, str(err)),))
    for c in found:
        p = c.program
        padded = bool(p.storage_padding)
        form = (p.structure, p.staged, min(p.stages, 3), p.split_k > 1, p.raster > 1, p.vector_elements, p.interleaved,
                padded, p.expr.name, len(p.axes), p.fragment and p.fragment.family)  # fmt: skip
        first.setdefault(form, Variant(c.id, p, c.estimate))
    # Forms of another template than the best one come first, or many forms of one would leave no room for them.
    seen: dict[str, int] = {}
    ranked = []
    for n, v in enumerate(first.values()):
        seen[v.program.structure] = seen.get(v.program.structure, 0) + 1
        ranked.append((seen[v.program.structure], n, v))
    return Wanted(name, expression, tuple(v for _, _, v in sorted(ranked, key=lambda x: x[:2])[:_FORMS]))
