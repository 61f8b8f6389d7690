"""The error tree of roller, and the did-you-mean helper every message uses.

A message reads ``where: expected X, got Y. Remedy.``; errors are values a user acts on, so each
class says which stage refused and none carries a traceback of TVM inside its text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RollerError(Exception):
    """Base of every error roller raises on purpose."""


class ExprError(RollerError, ValueError):
    """A tensor expression is malformed, symbolic, data-dependent or out of the supported family."""


class SpecError(RollerError, ValueError):
    """A device specification is unknown, malformed, or lacks a field."""


class TileError(RollerError, ValueError):
    """A tile does not fit the device, or names an axis or a layer that does not exist."""


class BuildError(RollerError, RuntimeError):
    """A candidate could not be lowered or built; carries the compiler's own text."""


class NoCandidateError(RollerError, RuntimeError):
    """No candidate survived; the reasons are grouped in the message."""


class ArtifactError(RollerError, ValueError):
    """An artifact is damaged, of a newer format, or cannot be written."""


class ModelError(RollerError, ValueError):
    """A model is damaged, hostile, or holds what cannot be compiled; lists everything it refuses."""


class UnsupportedError(ModelError):
    """Nodes of a model cannot be compiled, by whatever means.

    Parameters
    ----------
    message
        All of them, with a remedy.
    model
        Name of the model.
    nodes
        ``operator 'node': reason`` for each.
    """

    def __init__(self, message: str, model: str, nodes: tuple[str, ...]) -> None:
        super().__init__(message)
        self.model, self.nodes = model, nodes

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with everything that made it."""
        return type(self), (*self.args, self.model, self.nodes)


class RollerWarning(UserWarning):
    """Something went wrong that roller worked around; the result is right all the same."""


class LaunchError(RollerError, RuntimeError):
    """A kernel cannot be run here, or was called with wrong arrays."""


class EmulationError(RollerError, RuntimeError):
    """An emulated kernel misbehaved (bounds, alignment, barriers), or the emulator cannot run it."""


class EmulationTimeout(EmulationError):
    """An emulated kernel did not end in the time it was given; it did nothing wrong so far."""


def counted(number: int, what: str) -> str:
    """Return a number of things as people write it.

    Examples
    --------
    >>> counted(1, "array"), counted(2, "array")
    ('1 array', '2 arrays')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known name, or an empty string.

    Examples
    --------
    >>> did_you_mean("bandwith", ["bandwidth", "banks"])
    "; did you mean 'bandwidth'?"
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
