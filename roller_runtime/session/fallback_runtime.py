"""Runs subgraphs in another runtime, which is loaded when the first subgraph runs."""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from roller_runtime.core.fork_safe_lock import ForkSafeLock
from roller_runtime.errors import LaunchError, counted
from roller_runtime.plan.program_steps import Foreign, Step

#: Maximum number of nodes that an error names.
_NAMED = 4
_REMEDY = "Install it: pip install 'roller[fallback]', or 'roller-runtime[fallback]' where roller is not installed."

_lock = ForkSafeLock()
#: Open sessions by the identity of their step, removed when the step is garbage-collected.
_sessions: dict[int, Any] = {}


def require_runtimes(steps: Iterable[Step]) -> None:
    """Raise an error if a step needs a runtime that is not installed."""
    foreign = [s for s in steps if isinstance(s, Foreign)]
    for runtime in dict.fromkeys(s.runtime for s in foreign):
        if importlib.util.find_spec(runtime) is None:
            nodes = [n for s in foreign if s.runtime == runtime for n in s.nodes]
            named = ", ".join(f"'{n}'" for n in nodes[:_NAMED]) + (", ..." if len(nodes) > _NAMED else "")
            raise LaunchError(
                f"fallback: expected the package {runtime}, which computes {counted(len(nodes), 'node')} "
                f"({named}), found none. {_REMEDY}"
            )


def run_fallback_step(step: Foreign, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    """Run a fallback subgraph; its session is created on its first run."""
    session = _cached_session(step)
    names = [i.name for i in session.get_inputs()]
    given = [a for a in inputs if a is not None]
    if len(names) != len(given):
        raise LaunchError(
            f"{step.runtime}: expected {counted(len(names), 'input')} ({', '.join(names)}), got {len(given)}."
        )
    try:
        return tuple(session.run(None, dict(zip(names, given, strict=True))))
    except Exception as err:  # its errors share no base class
        raise LaunchError(f"{', '.join(step.nodes)}: onnxruntime fails ({err}). Check the model's inputs.") from err


def _cached_session(step: Foreign) -> Any:
    with _lock:
        found = _sessions.get(id(step))
        if found is None:
            found = _sessions[id(step)] = _create_session(step)
            weakref.finalize(step, _sessions.pop, id(step), None)
        return found


def _create_session(step: Foreign) -> Any:
    if step.runtime != "onnxruntime":
        raise LaunchError(f"a foreign step: no runtime '{step.runtime}' is known. Use fallback='onnxruntime'.")
    try:
        import onnxruntime
    except ImportError as err:
        raise LaunchError(
            f"{', '.join(step.nodes)}: expected the package onnxruntime, which computes them, got {err}. {_REMEDY}"
        ) from err
    try:
        return onnxruntime.InferenceSession(step.model, providers=["CPUExecutionProvider"])
    except Exception as err:  # its errors share no base class
        raise LaunchError(f"{', '.join(step.nodes)}: onnxruntime refuses the subgraph ({err}).") from err
