"""ConstructOptions: every mechanism of the construction can be switched off (the papers' ablations)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from roller.errors import RollerError, did_you_mean
from roller.expr import TensorExpr

#: Part of a candidate's identity: raise it when a template changes what a program means.
TEMPLATE_VERSION = 3
#: Candidates constructed, and timed at most, where ``top_k="auto"`` decides which of them are timed.
AUTO_MOST = 10
#: ``roller`` constructs, ``sokoban`` enumerates.
POLICIES = ("roller", "sokoban")
#: Mechanisms that are on or off.
_SWITCHES = (
    "shrink", "axis_fusion", "axis_grouping", "split_k", "winograd", "windows", "pipelining", "matrix_units"
)  # fmt: skip


@dataclass(frozen=True)
class ConstructOptions:
    """How to construct.

    Parameters
    ----------
    top_k
        Programs to keep, best estimate first; ``"auto"`` for those of the best :data:`AUTO_MOST` that the model cannot
        tell from its favourite (:mod:`roller.construction.auto`).
    shrink
        Shrink block tiles when there are too few blocks to fill the device.
    axis_fusion
        Fuse axes that are adjacent, or both absent, in every tensor.
    axis_grouping
        Consider the grouped form (implicit GEMM) besides the plain one.
    epsilon
        Largest padded waste of an axis, ``((S - N % S) % S) / N``; what is padded is priced.
    split_k
        Consider splitting the reduction over blocks when blocks are few.
    units
        Build for this many units of the device, or as many as it has; ``None`` for all.
    policy
        ``"roller"`` constructs aligned programs; ``"sokoban"`` enumerates all tilings of all layers and prunes exactly:
        seconds instead of milliseconds, and nothing better in its space is missed.
    pool
        Distinct programs to price at most, per canonical form.
    winograd
        Consider Winograd's algorithm where its structure is there (3x3 windows of step one): fewer products, but
        an output is accurate relative to the largest input of its tile instead of its own window.
    windows
        Consider threads that walk the rows below sliding windows (depthwise convolution, pooling; GPU).
    pipelining
        Consider pipelines (several copies of staged tiles, GPU) and other orders of blocks for tiled programs.
    matrix_units
        Consider the device's matrix unit where one of its fragments takes the dtypes of operands and accumulator.
    constants
        Inputs, by name, whose values do not change from call to call (weights): packing them costs no call anything.
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
    constants: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject values no construction can honour."""
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise _bad(name, "True or False", getattr(self, name))
        if self.top_k != "auto" and (not _is_number(self.top_k, int) or self.top_k < 1):
            raise _bad("top_k", "an integer of at least 1 or 'auto'", self.top_k)
        if not _is_number(self.epsilon, (int, float)) or not self.epsilon >= 0.0:
            raise _bad("epsilon", "a value of at least 0", self.epsilon)
        if self.units is not None and (not _is_number(self.units, int) or self.units < 1):
            raise _bad("units", "an integer of at least 1 or None", self.units)
        if self.policy not in POLICIES:
            raise _bad("policy", f"one of {POLICIES}", self.policy)
        if not _is_number(self.pool, int) or self.pool < self.count:
            raise _bad("pool", f"an integer of at least top_k={self.count}", self.pool)
        if not isinstance(self.constants, tuple) or not all(isinstance(n, str) for n in self.constants):
            raise _bad("constants", "a tuple of names of inputs", self.constants)

    @property
    def count(self) -> int:
        """Programs to construct."""
        return AUTO_MOST if self.top_k == "auto" else self.top_k

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return asdict(self)

    def constants_of(self, expression: TensorExpr) -> tuple[int, ...]:
        """Return the positions of the constant inputs of ``expression``, ascending.

        Raises
        ------
        RollerError
            Where a constant is no input of it.
        """
        names = [t.name for t in expression.inputs]
        for n in self.constants:
            if n not in names:
                hint = did_you_mean(n, names) or "."
                raise RollerError(f"constants: expected inputs of {expression.name} {names}, got '{n}'{hint}")
        return tuple(sorted({names.index(n) for n in self.constants}))

    def identity(self, expression: TensorExpr) -> dict[str, Any]:
        """Return as plain data what of the options decides the kernel of ``expression``: positions, not names."""
        return {**self.to_dict(), "constants": list(self.constants_of(expression))}


def _is_number(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Whether the value is a number of the kind; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _bad(name: str, expected: str, got: Any) -> RollerError:
    return RollerError(f"ConstructOptions.{name}: expected {expected}, got {got!r}.")
