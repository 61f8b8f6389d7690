"""Traces for other batches, derived from two traces if every size is affine in the batch.

A size in a step, such as an axis, a stride or the bytes of a storage, is usually ``p + q * batch``. Two traces give
``p`` and ``q`` for each size, and a third shows whether this is correct. Steps whose operators depend on the batch are
detected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, Storage, TensorRecord, Trace


class NotAffineError(ValueError):
    """Sizes in two traces are not affine in the batch, or the traces differ in more than sizes."""


@dataclass(frozen=True)
class AffineBatch:
    """Traces of one step at two batch sizes.

    Parameters
    ----------
    low, high
        The traces; their options give their batches.

    Examples
    --------
    >>> def step(batch):
    ...     x, y = (TensorRecord((batch, 8), (8, 1), "float32", n) for n in range(2))
    ...     return Trace((Operator(0, "aten.relu.default", "forward", (x,), (y,)),), (), {}, (0, 1), {"batch": batch})
    >>> AffineBatch(step(2), step(4)).at(7).operators[0].inputs[0].shape
    (7, 8)
    """

    low: Trace
    high: Trace

    def at(self, batch: int) -> Trace:
        """Return the trace for another batch."""
        low, high = self.low, self.high
        interpolate = _make_interpolator(int(low.options["batch"]), int(high.options["batch"]), batch)
        if low.iterations != high.iterations or len(low.events) != len(high.events):
            raise NotAffineError("traces of other lengths")
        return Trace(
            tuple(_interpolate_operator(a, b, interpolate) for a, b in zip(low.operators, high.operators, strict=True)),
            tuple(_interpolate_event(a, b, interpolate) for a, b in zip(low.events, high.events, strict=True)),
            _interpolate_storages(low.storages, high.storages, interpolate), low.iterations, {**low.options,
                                                                                              "batch": batch},
            low.warnings, low.registered,
        )  # fmt: skip


def is_same_step(one: Trace, other: Trace) -> bool:
    """Return whether two traces are equal apart from floating-point arguments, warnings and options."""
    return (
        one.iterations == other.iterations
        and one.events == other.events
        and one.storages == other.storages
        and len(one.operators) == len(other.operators)
        and all(
            a.signature == b.signature and (a.phase, a.module, a.stack) == (b.phase, b.module, b.stack)
            for a, b in zip(one.operators, other.operators, strict=True)
        )
    )


class TracesByBatch:
    """Traces of one step at any batch; batches are traced only until three of them show that the others can be derived.

    Parameters
    ----------
    trace_of
        Function that traces the step at a batch.
    """

    def __init__(self, trace_of: Callable[[int], Trace]) -> None:
        self._trace_of = trace_of
        self._traced: dict[int, Trace] = {}
        self._affine: AffineBatch | None = None
        self._is_affine = True

    @property
    def traced_batches(self) -> tuple[int, ...]:
        """Traced batches, in order."""
        return tuple(sorted(self._traced))

    def at(self, batch: int) -> Trace:
        """Return the trace for a batch."""
        found = self._traced.get(batch)
        if found is not None:
            return found
        if self._affine is None and self._is_affine and len(self._traced) >= _PROOF:
            self._affine = _fit_affine_batch(self._traced)
            self._is_affine = self._affine is not None
        if self._affine is not None and batch > 1:  # an axis of 1 is broadcast, and copies of it are left out
            try:
                return self._affine.at(batch)
            except NotAffineError:  # such as a size that would be negative there
                pass
        found = self._traced[batch] = self._trace_of(batch)
        return found


#: Number of traces needed to show that sizes are affine in the batch.
_PROOF = 3


def _fit_affine_batch(traced: Mapping[int, Trace]) -> AffineBatch | None:
    """Return the traces of the smallest and largest batch if all others can be derived from them, else ``None``."""
    batches = sorted(traced)
    found = AffineBatch(traced[batches[0]], traced[batches[-1]])
    try:
        holds = all(is_same_step(found.at(n), traced[n]) for n in batches[1:-1])
    except NotAffineError:
        return None
    return found if holds else None


_Interpolator = Callable[[int, int], int]


def _make_interpolator(low: int, high: int, batch: int) -> _Interpolator:
    if low == high:
        raise NotAffineError("traces of one batch")

    def interpolate(a: int, b: int) -> int:
        if a == b:
            return a
        whole, rest = divmod((b - a) * (batch - low), high - low)
        if rest or a + whole < 0:
            raise NotAffineError(f"{a} at batch {low}, {b} at batch {high}")
        return a + whole

    return interpolate


def _interpolate_operator(a: Operator, b: Operator, interpolate: _Interpolator) -> Operator:
    if (a.name, a.phase, a.module, a.stack, a.stream, a.iteration) != (
        b.name, b.phase, b.module, b.stack, b.stream, b.iteration
    ):  # fmt: skip
        raise NotAffineError(f"{a.name} and {b.name} at place {a.index}")
    if a.inputs == b.inputs and a.outputs == b.outputs and a.arguments == b.arguments:
        return a
    return replace(
        a, inputs=_interpolate_tensors(a.inputs, b.inputs, interpolate), outputs=_interpolate_tensors(a.outputs,
            b.outputs, interpolate),
        arguments=_interpolate_argument(a.arguments, b.arguments, interpolate),
    )  # fmt: skip


def _interpolate_tensors(
    a: Sequence[TensorRecord], b: Sequence[TensorRecord], interpolate: _Interpolator
) -> tuple[TensorRecord, ...]:
    if len(a) != len(b):
        raise NotAffineError(f"{len(a)} and {len(b)} tensors")
    return tuple(_interpolate_tensor(x, y, interpolate) for x, y in zip(a, b, strict=True))


def _interpolate_tensor(a: TensorRecord, b: TensorRecord, interpolate: _Interpolator) -> TensorRecord:
    if a == b:
        return a
    if (a.dtype, a.storage, len(a.shape), len(a.stride)) != (b.dtype, b.storage, len(b.shape), len(b.stride)):
        raise NotAffineError(f"storages {a.storage} and {b.storage}")
    return TensorRecord(
        tuple(map(interpolate, a.shape, b.shape)), tuple(map(interpolate, a.stride, b.stride)), a.dtype, a.storage,
        interpolate(a.offset, b.offset),
    )  # fmt: skip


def _interpolate_argument(a: Any, b: Any, interpolate: _Interpolator) -> Any:
    """Return an argument at the new batch; floats, which do not affect cost, are taken from the first trace."""
    if isinstance(a, bool) or isinstance(b, bool) or type(a) is not type(b):
        if a != b:
            raise NotAffineError(f"arguments {a!r} and {b!r}")
        return a
    if isinstance(a, int):
        return interpolate(a, b)
    if isinstance(a, float):
        return a
    if isinstance(a, Mapping):
        if a.keys() != b.keys():
            raise NotAffineError("arguments of other names")
        return {name: _interpolate_argument(a[name], b[name], interpolate) for name in a}
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            raise NotAffineError("arguments of other lengths")
        return type(a)(_interpolate_argument(x, y, interpolate) for x, y in zip(a, b, strict=True))
    if a != b:
        raise NotAffineError(f"arguments {a!r} and {b!r}")
    return a


def _interpolate_event(
    a: AllocEvent | FreeEvent, b: AllocEvent | FreeEvent, interpolate: _Interpolator
) -> AllocEvent | FreeEvent:
    if a == b:
        return a
    if not (isinstance(a, AllocEvent) and isinstance(b, AllocEvent)) or (a.storage, a.operator, a.stream) != (
        b.storage, b.operator, b.stream
    ):  # fmt: skip
        raise NotAffineError("other allocations")
    return replace(a, size_bytes=interpolate(a.size_bytes, b.size_bytes))


def _interpolate_storages(
    a: Mapping[int, Storage], b: Mapping[int, Storage], interpolate: _Interpolator
) -> dict[int, Storage]:
    if a.keys() != b.keys():
        raise NotAffineError("other storages")
    return {number: _interpolate_storage(known, b[number], interpolate) for number, known in a.items()}


def _interpolate_storage(a: Storage, b: Storage, interpolate: _Interpolator) -> Storage:
    if a == b:
        return a
    if (a.kind, a.name) != (b.kind, b.name):
        raise NotAffineError(f"{a.kind} and {b.kind} storages")
    return replace(a, size_bytes=interpolate(a.size_bytes, b.size_bytes))
