"""A training step as a graph of tasks, from a trace or a profile, with its simulation and breakdown."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return a name that ``roller.insight.step`` had before it became a package."""
    from roller.core.renamed import getattr_for_moved_names

    return getattr_for_moved_names(__name__, ("roller.insight.traced_step",))(name)
