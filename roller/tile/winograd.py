"""Winograd's minimal filtering for 3x3 windows: expressions to which it applies, its matrices, and its tiling on CPUs.

Source: A. Lavin, S. Gray: "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from roller.expr import Call, Cast, Index, Load, TensorExpr, Term
from roller.expr.canonical import fuse_axes
from roller.expr.join_split_channel_axes import join_channel_digits
from roller.tile.split_axis_into_tasks import TiledAxis
from roller.tile.structures import STRUCTURES
from roller_runtime.core.dtypes import NARROW_FLOATS

# ``F(m x m, 3 x 3)`` computes an ``m x m`` tile of outputs from ``(m+2)^2`` products instead of ``9 m^2``: the input
# tile and the filter are transformed (``B^T d B``, ``G g G^T``), multiplied element by element and summed over the
# channels, and the sum is transformed back (``A^T M A``). For each element of the transformed tile, the sum over
# channels is a matrix product.
#
# Numerical error. The matrices are those of the polynomial ``prod(x - p)`` over a few points ``p``, which determine the
# growth of rounding errors. For ``F(4x4)`` they are ``0, +-3/4, +-3/2``, whose squares and products are short binary
# fractions: in float32, they lose half as much accuracy as the usual ``0, +-1, +-2``. Measured for 28x28 images and 64
# filters with these kernels, against float64:
#
# ==================== =================== =================== ===================
# channels             16                  64                  512
# ==================== =================== =================== ===================
# largest error / bound of a correct kernel (``4 eps sqrt(9 C) sum|x||w|``), normal and positive inputs
# F(2x2)               0.013, 0.069        0.008, 0.040        0.002, 0.052
# F(4x4)               0.075, 0.056        0.023, 0.065        0.008, 0.049
# direct               0.017, 0.102        0.010, 0.126        0.004, 0.080
# root mean square error / that of the direct kernel, normal, positive and rectified inputs
# F(2x2)               0.76, 0.52, 0.97    0.63, 0.40, 0.75    0.58, 0.36, 0.72
# F(4x4)               2.41, 0.47, 2.86    1.98, 0.30, 2.25    1.81, 0.23, 2.16
# ==================== =================== =================== ===================
#
# The error of an output depends on the largest input of its *tile*, not of its own 3x3 window. The result of an
# all-zero window is not exactly zero, the elementwise bound fails next to an input that is orders of magnitude larger,
# and an infinity or NaN reaches every output of its tile. ``ConstructOptions(winograd=False)`` selects direct sums.
#
# GPU kernels use the same matrices. On the emulator (28x28 images, 16 filters, 16 to 256 channels) their root mean
# square errors are 0.37 to 0.96 times (F(2x2)) and 0.25 to 3.2 times (F(4x4)) that of a direct kernel with one chain of
# additions, and their largest error is 0.23 of the bound (rectified inputs, 16 channels). A direct sum split over
# blocks is itself more than twice as accurate as one chain.
Matrix = tuple[tuple[float, ...], ...]

#: Note on the accuracy of results, for users; the table above has the measurements.
ACCURACY = (
    "Winograd's algorithm: root mean square error 0.2 to 3.2 times that of a direct sum; an output is accurate "
    "relative to the largest input of its tile, not of its 3x3 window. ConstructOptions(winograd=False) sums directly."
)
#: Minimum number of channels for which the transforms' rounding error stays well within a correct kernel's bound.
LEAST_CHANNELS = 16
#: Side length (elements) of the window that the matrices below are for.
WINDOW = 3
#: Finite points for each output tile size; the point at infinity is added.
_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}


@dataclass(frozen=True)
class WindowProduct:
    """A sum over channels and a 3x3 window of stride one, which Winograd's algorithm can compute.

    Parameters
    ----------
    image, filters
        The operand that the window slides over, and the other operand.
    slides
        ``(spatial axis, window axis, dimension of image)`` of rows, then of columns.
    channel, filter
        The reduction axis of both operands, and the spatial axis of ``filters``.
    batch
        Spatial axes of ``image`` alone that do not slide.
    converted
        Whether any tensor is stored in floats of fewer than 32 bits.
    """

    image: Load
    filters: Load
    slides: tuple[tuple[str, str, int], tuple[str, str, int]]
    channel: str
    filter: str
    batch: tuple[str, ...]
    converted: bool = False


def window_product(expr: TensorExpr) -> WindowProduct | None:
    """Return the window product of ``expr``, or ``None`` if it is not one.

    Examples
    --------
    >>> from roller import ops
    >>> window_product(ops.conv2d(1, 8, 9, 9, 4, 3, 3, padding=1)).filter
    'f'
    >>> window_product(ops.conv2d(1, 8, 9, 9, 4, 3, 3, stride=2)) is None
    True
    """
    # The access maps alone decide: a float32 sum of products of two loads, stored in float32 or fewer bits, over
    # exactly a channel and two window axes of extent 3. The image is indexed by ``axis + window axis + constant`` in
    # two dimensions (any zero padding), the filters by the window axes, the channel and one further spatial axis.
    if "window_product" not in expr._memo:
        expr._memo["window_product"] = _match_window_product(expr)
    found: WindowProduct | None = expr._memo["window_product"]
    return found


def kernels_only_reorder_sums(expr: TensorExpr) -> bool:
    """Return whether kernels of ``expr`` only reorder the terms of its sums, unlike Winograd's algorithm."""
    if "only_reorders" not in expr._memo:
        forms = (expr, fuse_axes(expr))
        joined = [e for e in map(join_channel_digits, forms) if e is not None]  # forms without blocked channels
        expr._memo["only_reorders"] = all(window_product(e) is None for e in (*forms, *joined))
    found: bool = expr._memo["only_reorders"]
    return found


def _match_window_product(expr: TensorExpr) -> WindowProduct | None:
    stage = expr.anchor
    body = stage.body
    if stage.combiner != "sum" or (len(expr.stages) > 1 and expr.epilogue is None):
        return None
    if not isinstance(body, Call) or body.fn != "mul" or len(stage.reduction_axes) != 3:
        return None
    dtypes = {stage.output.dtype, *(expr.tensors[ld.tensor].dtype for ld in stage.loads)}
    if stage.acc_dtype != "float32" or not dtypes <= {"float32", *NARROW_FLOATS} or len(stage.loads) != 2:
        return None
    if not _are_axes_or_digits(stage.store) or not all(i.terms for i in stage.store):
        return None
    loaded = [n.arg if isinstance(n, Cast) and n.dtype == "float32" else n for n in body.args]
    for image, filters in (loaded, loaded[::-1]):
        found = _match_operands(expr, image, filters) if isinstance(image, Load) and isinstance(filters, Load) else None
        if found is not None:
            return replace(found, converted=dtypes != {"float32"})
    return None


def _match_operands(expr: TensorExpr, image: Load, filters: Load) -> WindowProduct | None:
    """Return the window product of the two operands in this order, or ``None`` if they form none."""
    extents = expr.anchor.extents
    spatial = {a.name for a in expr.anchor.spatial_axes}
    slides = [s for d, i in enumerate(image.index) if (s := _match_sliding_index(i, d, spatial)) is not None]
    plain = [i for i in image.index if len(i.terms) < 2]
    if (
        len(slides) != 2
        or len(plain) + 2 != len(image.index)
        or not _are_axes_or_digits(plain)
        or not _are_axes_or_digits(filters.index)
    ):
        return None
    windows = {k for _, k, _ in slides}
    channel = {a.name for a in expr.anchor.reduction_axes} - windows
    sliding = {i for i in image.index if len(i.terms) == 2}
    if image.outside != 0.0 or filters.guard or any(b.index not in sliding for b in image.guard):
        return None
    if len(windows) != 2 or any(extents[k] != WINDOW for k in windows) or len({a for a, _, _ in slides}) != 2:
        return None
    moved = {x for i in plain for x in i.axes}
    chosen = {x for i in filters.index for x in i.axes}
    own = chosen & spatial
    batch = moved & spatial
    if moved != channel | batch or chosen != channel | windows | own or len(own) != 1:
        return None
    if own & batch or spatial != own | batch | {a for a, _, _ in slides}:
        return None
    rows, columns = slides
    return WindowProduct(image, filters, (rows, columns), channel.pop(), own.pop(), tuple(sorted(batch)))


def _match_sliding_index(index: Index, dimension: int, spatial: set[str]) -> tuple[str, str, int] | None:
    """Return both axes and the dimension if an index is ``axis + window axis + constant``, else ``None``."""
    if len(index.terms) != 2 or any(t != Term(t.axis) for t in index.terms):
        return None
    own = [t.axis for t in index.terms if t.axis in spatial]
    rest = [t.axis for t in index.terms if t.axis not in spatial]
    return (own[0], rest[0], dimension) if len(own) == 1 and len(rest) == 1 else None


def _are_axes_or_digits(indices: Sequence[Index]) -> bool:
    """Return whether every index is an axis, a digit of one, or a constant, and axes repeat only as all digits."""
    if any(len(i.terms) > 1 or (i.terms and (i.const or i.terms[0].coef != 1)) for i in indices):
        return False
    digits: dict[str, list[tuple[int, int]]] = {}
    for t in (t for i in indices for t in i.terms):
        digits.setdefault(t.axis, []).append((t.div, t.mod))
    return all(_digits_cover_axis(sorted(found)) for found in digits.values())


def _digits_cover_axis(digits: list[tuple[int, int]]) -> bool:
    """Return whether digits ``(div, mod)``, lowest first, together represent every value of an axis."""
    ends = [1, *(div * mod for div, mod in digits)]
    return all(div == end for (div, _), end in zip(digits, ends, strict=False)) and ends[-1] == 0


@functools.cache
def winograd_matrices(m: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return the matrices for ``m x m`` output tiles: ``A^T``, ``G`` and ``B^T``.

    Their shapes are ``(m, m+2)``, ``(m+2, 3)`` and ``(m+2, m+2)``.

    Examples
    --------
    >>> a, g, b = (np.array(x) for x in winograd_matrices(4))
    >>> d, w = np.arange(6.0), np.array([1.0, 2.0, 4.0])
    >>> bool(np.allclose(a @ ((g @ w) * (b @ d)), np.convolve(d, w[::-1], "valid")))
    True
    """
    # Toom and Cook: with points ``p``, ``A^T[i][p] = p^i``, ``G[p][k] = p^k / prod(p - q)``, ``B^T[p] = prod(x - q)``
    # over the other points ``q``; the last row or column belongs to the point at infinity.
    points = _POINTS[m]
    n = m + WINDOW - 1
    a, g, b = np.zeros((m, n)), np.zeros((n, WINDOW)), np.zeros((n, n))
    for j, p in enumerate(points):
        others = [q for q in points if q != p]
        a[:, j] = [p**i for i in range(m)]
        g[j] = [p**k / np.prod([p - q for q in others]) for k in range(WINDOW)]
        b[j, : n - 1] = np.poly(others)[::-1]
    a[-1, -1] = g[-1, -1] = 1.0
    b[-1] = np.poly(points)[::-1]
    at, gt, bt = (tuple(tuple(float(x) for x in row) for row in t) for t in (a, g, b))
    return at, gt, bt


@dataclass(frozen=True)
class WinogradPlan:
    """The tiling that a program of a ``winograd`` structure determines.

    Parameters
    ----------
    form
        The expression's operands and axes.
    m
        Number of outputs per tile along rows and columns.
    tiled
        Tilings of the batch axes (in units of images) and of rows and columns (in units of output tiles).
    panels
        Tiling of the filters in panels of ``width``; the last one ends with the axis and overlaps its neighbour.
    width, lanes
        Number of filters per micro-kernel, and per vector.
    channel_lanes
        Number of channels per vector in the transform of the image.
    """

    form: WindowProduct
    m: int
    tiled: tuple[TiledAxis, ...]
    panels: TiledAxis
    width: int
    lanes: int
    channel_lanes: int
    filters: int
    channels: int

    @property
    def side(self) -> int:
        """Number of elements along one side of a transformed tile."""
        return self.m + WINDOW - 1

    @property
    def clipped_to_axes(self) -> WinogradPlan:
        """The plan with boxes no larger than their axis, because a task of an open axis may have fewer units."""
        tiled = [
            replace(t, box=box, groups=-(-box // t.group)) if t.is_open and (box := min(t.box, max(t.units, t.group)))
            else t for t in self.tiled
        ]  # fmt: skip
        return replace(self, tiled=tuple(tiled))

    @property
    def tiles(self) -> int:
        """Number of output tiles per task."""
        return math.prod(t.box for t in self.tiled)

    @property
    def tiles_per_micro_kernel(self) -> int:
        """Number of output tiles per micro-kernel."""
        return math.prod(t.group for t in self.tiled)

    @property
    def micro_kernels_per_panel(self) -> int:
        """Number of micro-kernels in a task for one panel and one element of the transformed tile."""
        return math.prod(t.groups for t in self.tiled)

    @property
    def tasks(self) -> int:
        """Number of tasks in the launch."""
        return math.prod(t.boxes for t in self.tiled) * self.panels.boxes

    @property
    def channel_vectors(self) -> int:
        """Number of vectors that cover the channels; the last one may overlap its neighbour."""
        return -(-self.channels // self.channel_lanes)

    @property
    def channel_pitch(self) -> int:
        """Distance (elements) between adjacent tiles in ``V``: an odd number of cache lines, to vary the cache sets."""
        line = 16
        lines = -(-self.channels // line)
        return (lines + 1 - lines % 2) * line

    @classmethod
    def of(
        cls, expr: TensorExpr, structure: str, register: Mapping[str, int], task: Mapping[str, int], lanes: int,
        open_axes: Sequence[str] = (),
    ) -> WinogradPlan | None:  # fmt: skip
        """Return the plan for register and task tiles (elements), or ``None`` if the algorithm does not apply."""
        form = window_product(expr)
        if form is None or {form.filter, form.channel} & set(open_axes):
            return None
        m, extents = STRUCTURES[structure].output_side, expr.anchor.extents
        filters, channels = extents[form.filter], extents[form.channel]
        own = power_of_two_below(min(lanes, filters))
        asked = max(own, min(register[form.filter], filters) // own * own)
        even = -(-filters // -(-filters // asked))
        width = -(-even // own) * own
        panels = TiledAxis.of(form.filter, -(-filters // width), 1, task[form.filter] // register[form.filter])
        units = {**dict.fromkeys(form.batch, 1), **{axis: m for axis, _, _ in form.slides}}
        tiled = [
            TiledAxis.of(a, -(-extents[a] // u), max(1, register[a] // u), max(1, task[a] // u), a in open_axes)
            for a, u in units.items()
        ]
        channel_lanes = power_of_two_below(min(lanes, channels))
        return cls(form, m, tuple(tiled), panels, width, own, channel_lanes, filters, channels)


def power_of_two_below(n: int) -> int:
    """Return the largest power of two not exceeding ``n``."""
    return 1 << (n.bit_length() - 1)


def count_vector_operations(matrix: Matrix) -> int:
    """Return the number of vector operations in ``matrix @ values``; shared terms of opposite points count once.

    Examples
    --------
    >>> [count_vector_operations(m) for m in winograd_matrices(2)]
    [4, 6, 6]
    """
    # Rows of opposite points (columns of ``A^T``) differ only in signs: two halves, added and subtracted.
    if len(matrix) < len(matrix[0]):
        kept = [0, *range(1, len(matrix[0]) - 1, 2), len(matrix[0]) - 1]
        return 2 * (len(kept) - 2) + sum(_count_sum_operations([row[j] for j in kept]) for row in matrix)
    total, sizes = 0, [[abs(c) for c in row] for row in matrix]
    for row, size in zip(matrix, sizes, strict=True):
        other = next((r for r, s in zip(matrix, sizes, strict=True) if s == size and r != row), None)
        if other is None:
            total += _count_sum_operations(row)
        elif row > other:
            same = [a for a, b in zip(row, other, strict=True) if a == b]
            opposite = [a for a, b in zip(row, other, strict=True) if a != b]
            total += _count_sum_operations(same) + _count_sum_operations(opposite) + 2
    return total


def _count_sum_operations(coefficients: Sequence[float]) -> int:
    """Return the operation count of a weighted sum: a product unless by 1, then a multiply-add per further term."""
    left = [c for c in coefficients if c]
    return len(left) - (left[0] == 1.0)
