"""Runs and times the real operators of a step: the call alone, without a mode's work around it."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from types import FunctionType
from typing import Any

import torch

from roller.insight.trace.pytorch.compat import TorchFunctionMode, without_override_check
from roller.insight.trace.pytorch.operator_origin import OriginTracker
from roller.insight.trace.pytorch.operator_recorder import OperatorRecorder

#: Name of an operator and shapes of its inputs.
Call = tuple[str, tuple[tuple[int, ...], ...]]


class RealOperators:
    """Runs operators on real instead of meta tensors (:mod:`roller.insight.trace.pytorch.data_dependent_values`)."""

    #: Whether the host is a different device from the one that runs the step.
    hosted = False

    def __init__(self) -> None:
        self.warnings: dict[str, None] = {}
        #: Seconds that the latest operator took.
        self.seconds = 0.0

    def run_operator(self, func: Any, args: Any, kwargs: Any, ours: bool = True) -> Any:
        """Run an operator, store the time that it took, in seconds, and return its result."""
        start = perf_counter()
        result = func(*args, **kwargs)
        self.seconds = perf_counter() - start
        return result

    def add_note(self, sentence: str) -> None:
        """Add a sentence to the report, once."""
        self.warnings[sentence] = None


class TimedRecorder(OperatorRecorder):
    """Records operators as in a trace, with the time, in seconds, that each operator takes.

    Parameters
    ----------
    origins
        Provider of an operator's origin.
    values
        :class:`RealOperators`, which runs and times operators.
    """

    values: Any

    def __init__(self, origins: OriginTracker, values: Any) -> None:
        super().__init__(origins, values, device="cpu", name="cpu")
        self.seconds: list[float] = []

    def _record_operator(self, *args: Any) -> None:
        self.seconds.append(self.values.seconds)
        super()._record_operator(*args)


class OperatorTimer(OperatorRecorder):
    """Times operators and records only their names and shapes, with far less work between operators than in a trace.

    Parameters
    ----------
    values
        :class:`RealOperators`, which runs and times operators.
    """

    values: Any

    def __init__(self, values: Any) -> None:
        nowhere: Any = None  # no origin is asked for
        super().__init__(OriginTracker({}, nowhere), values, device="cpu", name="cpu")
        self.calls: list[Call] = []
        self.seconds: list[float] = []

    def record_tensor(self, tensor: torch.Tensor, *_: Any) -> Any:
        """Return the shape of a tensor."""
        return tuple(tensor.shape)

    def _record_operator(
        self, func: Any, args: Any, kwargs: Any, inputs: tuple[Any, ...], outputs: Sequence[torch.Tensor]
    ) -> None:
        self.seconds.append(self.values.seconds)
        self.calls.append((str(func), inputs))


class OriginMode(TorchFunctionMode):
    """Stores the origin of each result in the autograd graph; calls reach PyTorch unchanged."""

    def __init__(self, origins: OriginTracker) -> None:
        super().__init__()
        self.origins = origins

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call to PyTorch."""
        if isinstance(func, FunctionType):
            body = without_override_check(func)
            if body is not None:
                with self:
                    return body(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func.__name__ not in ("__get__", "__set__", "__repr__", "__str__"):
            self.origins.store_in_autograd_graph(result)
        return result
