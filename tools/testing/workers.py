"""Values that the controller of pytest-xdist computes once and sends to its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def shared(config: pytest.Config, key: str, compute: Callable[[], Any]) -> Any:
    """Return a plain value: computed in the controller, or in a run without workers; received in a worker."""
    return config.workerinput[key] if is_worker(config) else compute()  # type: ignore[attr-defined]
