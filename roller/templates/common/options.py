"""ConstructOptions: every mechanism of construction can be switched off (for the papers' ablations)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from roller.core.display import non_default_repr
from roller.core.validation import validate_flag, validate_integer, validate_number
from roller.errors import RollerError, did_you_mean, shown
from roller.expr import TensorExpr
from roller.templates.common.policy import POLICIES

#: Part of a candidate's identity: raise it when a template changes the meaning of a program.
TEMPLATE_VERSION = 3
#: Number of candidates constructed for ``top_k="auto"``, which decides how many of them are timed.
AUTO_MOST = 10
#: Maximum number of programs that may be requested and priced: each takes memory before the first is returned.
MOST_PROGRAMS = 1_000_000
#: Mechanisms that are on or off.
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
        Number of programs to keep, best estimate first; ``"auto"`` keeps those of the best :data:`AUTO_MOST` that the
        model cannot distinguish from its favourite (:mod:`roller.construction.worth_timing`).
    shrink
        Shrink block tiles when there are too few blocks to fill the device.
    axis_fusion
        Fuse axes that are adjacent, or both absent, in every tensor.
    axis_grouping
        Consider the grouped form (implicit GEMM) in addition to the plain form.
    epsilon
        Maximum padded waste of an axis, ``((S - N % S) % S) / N``; padding is priced.
    split_k
        Consider splitting the reduction over blocks if there are few blocks.
    units
        Build for this many units of the device, at most those it has; ``None`` for all.
    policy
        ``"roller"`` constructs freely; ``"library"`` takes only programs that resemble the precompiled kernels of a
        framework's libraries (GPU; :mod:`roller.templates.common.policy`).
    pool
        Maximum number of distinct programs to price per canonical form.
    winograd
        Consider Winograd's algorithm for 3x3 windows of step one: fewer products, but an output is accurate relative to
        the largest input of its tile instead of its own window.
    windows
        Consider threads that walk along the rows of sliding windows (depthwise convolution, pooling; GPU).
    pipelining
        Consider pipelines (several copies of staged tiles, GPU) and other orders of blocks for tiled programs.
    matrix_units
        Consider the device's matrix unit if one of its fragments supports the dtypes of operands and accumulator.
    propagate_nan
        Let NaN win in ``max`` and ``min`` (``relu``, ``clip``, pooling, reductions), as in NumPy and PyTorch.
        Otherwise, kernels return NaN or the number, whichever is cheaper, and the check allows both.
    constants
        Names of inputs whose values do not change from call to call (weights): packing them is free at call time.
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
        """Name the options that differ from the defaults."""
        return non_default_repr(self)

    def __post_init__(self) -> None:
        """Reject values that no construction can honour."""
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

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return asdict(self)

    def meant(self, expression: TensorExpr) -> TensorExpr:
        """Return an expression that propagates NaN only if the options do."""
        if self.propagate_nan or not expression.propagate_nan:
            return expression
        return replace(expression, propagate_nan=False)

    def constants_of(self, expression: TensorExpr) -> tuple[int, ...]:
        """Return the positions of the constant inputs of ``expression``, ascending.

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
        """Return the options that determine the kernel of ``expression`` as plain data: positions, not names."""
        return {**self.to_dict(), "constants": list(self.constants_of(expression))}


def _option_name(name: str) -> str:
    return f"ConstructOptions.{name}"
