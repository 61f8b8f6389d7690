"""The exception hierarchy of roller; errors that need no compiler are defined in ``roller_runtime``."""

from __future__ import annotations

from roller_runtime.errors import (
    MALFORMED,
    ArtifactError,
    LaunchError,
    ModelError,
    NoCandidateError,
    RollerError,
    RollerWarning,
    bounded,
    counted,
    did_you_mean,
    printable,
    shown,
)

__all__ = [
    "MALFORMED", "ArtifactError", "BuildError", "EmulationError", "EmulationTimeout", "ExprError", "LaunchError",
    "ModelError", "NoCandidateError", "RollerError", "RollerWarning", "SpecError", "TileError", "UnsupportedError",
    "bounded", "counted", "did_you_mean", "printable", "shown",
]  # fmt: skip


class ExprError(RollerError, ValueError):
    """A tensor expression is malformed, symbolic, data-dependent or outside the supported family."""


class SpecError(RollerError, ValueError):
    """A device specification is unknown or malformed, or lacks a field."""


class TileError(RollerError, ValueError):
    """A tile does not fit the device, or names an axis or a layer that does not exist."""


class BuildError(RollerError, RuntimeError):
    """A candidate could not be lowered or built; the message contains the compiler's output."""


class UnsupportedError(ModelError):
    """Nodes of a model cannot be compiled in any way.

    Parameters
    ----------
    message
        All affected nodes, with a remedy.
    model
        Name of the model.
    nodes
        ``operator 'node': reason`` for each.
    """

    def __init__(self, message: str, model: str, nodes: tuple[str, ...]) -> None:
        super().__init__(message)
        self.model, self.nodes = model, nodes

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with all constructor arguments."""
        return type(self), (*self.args, self.model, self.nodes)


class EmulationError(RollerError, RuntimeError):
    """An emulated kernel misbehaved (bounds, alignment, barriers), or the emulator cannot run it."""


class EmulationTimeout(EmulationError):
    """An emulated kernel exceeded its time limit without any other error."""
