"""Options of construction; every mechanism can be switched off, as the papers' ablations require."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from roller.errors import RollerError, did_you_mean, shown
from roller.expr import TensorExpr
from roller.templates.common.library_kernel_limits import POLICIES
from roller_runtime.core.display import non_default_repr
from roller_runtime.core.validation import validate_flag, validate_integer, validate_number

#: Version of the templates, part of a candidate's identity: increase it when a template changes a program's meaning.
TEMPLATE_VERSION = 3
#: Number of candidates constructed for ``top_k="auto"``; the model then decides how many of them are timed.
AUTO_MOST = 10
#: Maximum number of programs that may be requested or priced: all of them are in memory before the first is returned.
MOST_PROGRAMS = 1_000_000
#: Names of the options that are flags.
_SWITCHES = (
    "shrink", "axis_fusion", "axis_grouping", "split_k", "winograd", "windows", "pipelining", "matrix_units",
    "propagate_nan",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class ConstructOptions:
    """Options for constructing programs.

    Parameters
    ----------
    top_k
        Number of programs to keep, best estimate first. ``"auto"`` keeps those of the best :data:`AUTO_MOST` programs
        that the model cannot distinguish from the first (:mod:`roller.construction.worth_timing`).
    shrink
        Shrink block tiles when there are too few blocks to fill the device.
    axis_fusion
        Fuse axes that are adjacent, or both absent, in every tensor.
    axis_grouping
        Consider the grouped form (implicit GEMM) in addition to the plain form.
    epsilon
        Maximum padding of an axis of extent ``N`` for tiles of extent ``S``, ``((S - N % S) % S) / N``. The price
        includes padding.
    split_k
        Consider splitting the reduction over blocks if there are few blocks.
    units
        Number of the device's units to use, at most as many as it has; ``None`` for all.
    policy
        ``"roller"`` constructs freely; the ``"library"`` policies allow only programs that resemble the precompiled
        kernels of a framework's libraries (GPU; :mod:`roller.templates.common.library_kernel_limits`).
    pool
        Maximum number of distinct programs to price per canonical form.
    winograd
        Consider Winograd's algorithm for 3x3 windows with stride 1. It needs fewer products, but the error of an output
        is relative to the largest input of the whole tile, not of the output's own window.
    windows
        Consider kernels whose threads move along the rows of sliding windows (depthwise convolution, pooling; GPU).
    pipelining
        Consider pipelines (several copies of each staged tile) and other orders of blocks (GPU).
    matrix_units
        Consider the device's matrix unit if one of its fragments supports the dtypes of the operands and the
        accumulator.
    propagate_nan
        Propagate NaN through ``max`` and ``min`` (``relu``, ``clip``, pooling, reductions), as NumPy and PyTorch do.
        Otherwise, kernels return either NaN or the number, whichever is cheaper, and the check accepts both.
    constants
        Names of inputs whose values are the same in all calls (weights), so that they are packed only once.
    """

    top_k: int | Literal["auto"] = 10
    shrink: bool = True
    axis_fusion: bool = True
    axis_grouping: bool = True
    epsilon: float = 1.0
    split_k: bool = True
    units: int | None = None
    policy: str = "roller"
    pool: int = 8192
    winograd: bool = True
    windows: bool = True
    pipelining: bool = True
    matrix_units: bool = True
    propagate_nan: bool = True
    constants: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return a representation with only the options that differ from the defaults."""
        return non_default_repr(self)

    def __post_init__(self) -> None:
        """Raise an error if a value is invalid."""
        made: dict[str, Any] = {name: validate_flag(getattr(self, name), _option_name(name)) for name in _SWITCHES}
        if not (isinstance(self.top_k, str) and self.top_k == "auto"):
            expected = "an integer of at least 1 or 'auto'"
            made["top_k"] = validate_integer(self.top_k, _option_name("top_k"), 1, MOST_PROGRAMS, expected=expected)
        expected = "a value of at least 0"  # infinity forbids no padding
        made["epsilon"] = validate_number(self.epsilon, _option_name("epsilon"), infinite=True, expected=expected)
        if self.units is not None:
            made["units"] = validate_integer(
                self.units, _option_name("units"), 1, expected="an integer of at least 1 or None"
            )
        if not isinstance(self.policy, str) or self.policy not in POLICIES:
            raise RollerError(
                f"{_option_name('policy')}: expected one of {list(POLICIES)}, got {shown(self.policy)}. "
                "Sokoban's enumeration is a benchmark now: `python -m benchmarks.sokoban` in a clone."
            )
        count = AUTO_MOST if self.top_k == "auto" else made["top_k"]
        expected = f"an integer of at least top_k={count}"
        made["pool"] = validate_integer(self.pool, _option_name("pool"), count, MOST_PROGRAMS, expected=expected)
        if not isinstance(self.constants, tuple) or not all(isinstance(n, str) for n in self.constants):
            got = shown(self.constants)
            raise RollerError(f"{_option_name('constants')}: expected a tuple of names of inputs, got {got}.")
        for name, value in made.items():  # Python's own numbers: they become part of keys and of JSON
            object.__setattr__(self, name, value)

    @property
    def count(self) -> int:
        """Number of programs to construct."""
        return AUTO_MOST if self.top_k == "auto" else self.top_k

    def with_threads(self, threads: int, units: int) -> ConstructOptions:
        """Return the options for at most ``threads`` of a device's ``units``."""
        # Options for all units stay as they are, so that the cache finds the kernel by them.
        limit = units if self.units is None else min(self.units, units)
        return self if threads >= limit else replace(self, units=threads)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return asdict(self)

    def meant(self, expression: TensorExpr) -> TensorExpr:
        """Return ``expression``, changed to ignore NaN unless the options ask for its propagation."""
        if self.propagate_nan or not expression.propagate_nan:
            return expression
        return replace(expression, propagate_nan=False)

    def constants_of(self, expression: TensorExpr) -> tuple[int, ...]:
        """Return the positions of the constant inputs of ``expression`` in ascending order.

        Raises
        ------
        RollerError
            If a constant is not an input of ``expression``.
        """
        names = [t.name for t in expression.inputs]
        for n in self.constants:
            if n not in names:
                hint = did_you_mean(n, names) or "."
                raise RollerError(f"constants: expected inputs of {expression.name} {names}, got '{n}'{hint}")
        return tuple(sorted({names.index(n) for n in self.constants}))

    def identity(self, expression: TensorExpr) -> dict[str, Any]:
        """Return plain data that identifies a kernel of ``expression``, with constants given by position."""
        return {**self.to_dict(), "constants": list(self.constants_of(expression))}


def _option_name(name: str) -> str:
    return f"ConstructOptions.{name}"
