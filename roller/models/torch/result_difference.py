"""Finds differences from PyTorch's results beyond rounding errors; results computed in float64 are the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from roller.errors import counted

if TYPE_CHECKING:
    import torch

#: Number of runs of PyTorch with rounding noise.
_SAMPLES = 4
#: Error of sums, in units in the last place of a typical element, that is accepted without a float64 run.
_UNITS_OF_SUMS = 64


class _Tolerances(NamedTuple):
    """Tolerances of a dtype: ``factor`` multiplies PyTorch's error; the others are in units in the last place."""

    noise: int
    factor: int
    units: int
    unasked: int


_WIDE, _NARROW = _Tolerances(4, 8, 32, 16), _Tolerances(1, 4, 4, 2)

#: Runs a graph of PyTorch on arguments.
Run = Callable[..., Sequence[Any]]


def describe_difference(
    found: Sequence[Any],
    expected: Sequence[Any],
    eager: Run,
    arguments: Sequence[Any],
    *,
    pointwise: bool,
    random: bool = False,
) -> str | None:
    r"""Return how results differ from PyTorch's beyond rounding errors; ``None`` if they do not.

    Notes
    -----
    In float32, an element :math:`y` is wrong if its distance from the float64 result :math:`r` exceeds :math:`8 \max(e,
    \tilde e) + 32 \epsilon |r|`. :math:`e` is the effect of rounding on PyTorch's own element: the larger of its own
    distance from :math:`r` and its distance in runs with noise in the last places of every operator; :math:`\tilde e`
    is the median over the tensor. Sums in a different order therefore never count as different, however much their
    terms cancel (Vignes 1993, "A stochastic arithmetic for reliable scientific computation").
    """
    if len(found) != len(expected):
        return f"it returns {counted(len(found), 'result')} instead of {len(expected)}"
    doubtful = []
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        shape = _type_difference(mine, theirs)
        if shape:
            return f"result {number} {shape}"
        if theirs is not None and not _agree_in_last_places(mine, theirs, pointwise):
            doubtful.append(number)
    if not doubtful:
        return None
    judge = _run_eager_under_mode(eager, arguments, _float64_mode(), random)
    attempts = (_run_eager_under_mode(eager, arguments, _rounding_noise_mode(k), random) for k in range(_SAMPLES))
    noisy = [s for s in attempts if s is not None]
    for number in doubtful:
        exact = None if judge is None else _if_same_shape(judge[number], expected[number])
        samples = [t for s in noisy if (t := _if_same_shape(s[number], expected[number])) is not None]
        wrong = _describe_wrong_elements(found[number], expected[number], exact, samples)
        if wrong:
            return f"result {number} {wrong}"
    return None


def _type_difference(mine: Any, theirs: Any) -> str | None:
    """Return how the type, dtype or shape of a result differs; ``None`` if it does not."""
    import torch

    if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return None if mine is None and theirs is None else "is a tensor in only one of the two"
    for of in ("dtype", "shape"):
        one, other = getattr(mine, of), getattr(theirs, of)
        if one != other:
            return f"has {of} {_plain_text(one)} instead of {_plain_text(other)}"
    return None


def _plain_text(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, tuple) else str(value)


def _if_same_shape(result: Any, other: torch.Tensor) -> torch.Tensor | None:
    """Return a result if it is a tensor of the same shape as ``other``; otherwise ``None``."""
    import torch

    return result if isinstance(result, torch.Tensor) and result.shape == other.shape else None


def _is_exact_dtype(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _epsilon(dtype: torch.dtype) -> float:
    import torch

    return float(torch.finfo(dtype).eps)


def _tolerances_of(dtype: torch.dtype) -> _Tolerances:
    return _WIDE if _epsilon(dtype) < 1e-5 else _NARROW


def _agree_in_last_places(mine: torch.Tensor, theirs: torch.Tensor, pointwise: bool) -> bool:
    """Return whether tensors agree except in their last places."""
    import torch

    if _is_exact_dtype(theirs):
        return bool(torch.equal(mine, theirs))
    unit, a, b = _epsilon(theirs.dtype), mine.double(), theirs.double()
    allowed = _tolerances_of(theirs.dtype).unasked * unit * b.abs()
    if not pointwise and unit < 1e-5:
        allowed = allowed + _UNITS_OF_SUMS * unit * _median(b.abs())
    return bool((_both_finite_or_same_special(a, b) & (~b.isfinite() | ((a - b).abs() <= allowed))).all())


def _median(values: torch.Tensor) -> float:
    """Return the median of the finite values; 0 if there are none."""
    finite = values[values.isfinite()]
    return float(finite.median()) if finite.numel() else 0.0


def _both_finite_or_same_special(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a mask of elements that are both finite, both NaN, or the same infinity."""
    return (a.isnan() & b.isnan()) | (a == b) | (a.isfinite() & b.isfinite())


def _describe_wrong_elements(
    mine: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor | None, samples: Sequence[torch.Tensor]
) -> str | None:
    """Describe wrong elements (``None`` if there are none); without a float64 result, PyTorch's is the reference."""
    import torch

    count = theirs.numel()
    judge = theirs if exact is None else exact
    if _is_exact_dtype(theirs):
        tied = torch.stack([s != theirs for s in samples]).any(0) if samples else torch.zeros_like(theirs == theirs)
        bad = (mine != theirs) & ((judge == theirs) | (judge != mine)) & ~tied
        return f"differs in {int(bad.sum())} of {counted(count, 'element')}" if bad.any() else None
    # The reference is rounded to the results' dtype, in which a large float64 value becomes an infinity.
    r, a, b = judge.to(theirs.dtype).double(), mine.double(), theirs.double()
    noisy = [s.double() for s in samples]
    settled = (
        torch.stack([_both_finite_or_same_special(s, b) for s in noisy]).all(0)
        if noisy
        else torch.ones_like(a, dtype=torch.bool)
    )
    other = (
        ~_both_finite_or_same_special(a, b)
        & (_both_finite_or_same_special(b, r) | ~_both_finite_or_same_special(a, r))
        & settled
    )
    if other.any():
        which = "which are infinite or NaN in only one of the two"
        return f"differs in {int(other.sum())} of {counted(count, 'element')}, {which}"
    closer = judge.double()
    error = (b - closer).abs()
    for s in noisy:
        error = torch.maximum(error, (s - b).abs().nan_to_num(0.0, 0.0, 0.0))
    error = error.nan_to_num(0.0, 0.0, 0.0)
    info = torch.finfo(theirs.dtype)
    slack = _tolerances_of(theirs.dtype)
    allowed = slack.factor * error.clamp_min(_median(error)) + slack.units * info.eps * closer.abs() + info.tiny
    off = (a - closer).abs()
    bad = a.isfinite() & b.isfinite() & closer.isfinite() & (off > allowed)
    if not bad.any():
        return None
    most = f"{float(off[bad].max()):.3g}, where rounding explains {float(allowed[bad].min()):.3g}"
    return f"differs in {int(bad.sum())} of {counted(count, 'element')}, by up to {most}"


def _run_eager_under_mode(eager: Run, arguments: Sequence[Any], mode: Any, random: bool) -> Sequence[Any] | None:
    """Return PyTorch's results under a mode, on copies of the arguments; ``None`` if PyTorch raises an error."""
    import torch

    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[], enabled=random), mode:
            return eager(*copies)
    except Exception:  # noqa: BLE001 - an operator without float64 support raises any exception
        return None


def _dispatch_mode(run: Callable[[Any, Any, Any], Any]) -> Any:
    """Return a dispatch mode that runs operators through a function of the operator and its arguments."""
    from torch.utils._python_dispatch import TorchDispatchMode

    def dispatch(_: Any, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(operator, args, kwargs or {})

    return type("Mode", (TorchDispatchMode,), {"__torch_dispatch__": dispatch})()


def _float64_mode() -> Any:
    """Return a mode in which every operator computes in float64."""
    import torch
    from torch.utils._pytree import tree_map

    def raised(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.double:
            return value.double()
        return torch.double if isinstance(value, torch.dtype) and value.is_floating_point else value

    return _dispatch_mode(lambda operator, args, kwargs: operator(*tree_map(raised, args), **tree_map(raised, kwargs)))


def _rounding_noise_mode(seed: int) -> Any:
    """Return a mode that adds noise to the last places of results and of the operands of sums."""
    import torch
    from torch.utils._pytree import tree_map

    generator = torch.Generator().manual_seed(seed)

    def off(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        signs = torch.randint(0, 2, value.shape, generator=generator).mul_(2).sub_(1)
        # Zeros and infinities are kept.
        size = _tolerances_of(value.dtype).noise * _epsilon(value.dtype)
        return value + (value * size * signs).nan_to_num(0.0, 0.0, 0.0)

    def run(operator: Any, args: Any, kwargs: Any) -> Any:
        if operator.is_view or operator._schema.is_mutable:
            return operator(*args, **kwargs)
        if not is_pointwise(operator):
            args, kwargs = tree_map(off, (args, kwargs))
        return tree_map(off, operator(*args, **kwargs))

    return _dispatch_mode(run)


def is_pointwise(operator: Any) -> bool:
    """Return whether an operator is element-wise or a view."""
    import torch

    return bool(getattr(operator, "is_view", False)) or torch.Tag.pointwise in getattr(operator, "tags", ())
