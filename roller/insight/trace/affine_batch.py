"""Traces for other batches, derived from two traces if every size is affine in the batch.

A size in a step, such as an axis, a stride or the bytes of a storage, is usually ``p + q * batch``. Two traces give
``p`` and ``q`` for each size, and a third shows whether this is correct. Steps whose operators depend on the batch are
recognized.
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
        blend = _blend_of(int(low.options["batch"]), int(high.options["batch"]), batch)
        if low.iterations != high.iterations or len(low.events) != len(high.events):
            raise NotAffineError("traces of other lengths")
        return Trace(
            tuple(_operator(a, b, blend) for a, b in zip(low.operators, high.operators, strict=True)),
            tuple(_event(a, b, blend) for a, b in zip(low.events, high.events, strict=True)),
            _storages(low.storages, high.storages, blend), low.iterations, {**low.options, "batch": batch},
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
    def traced(self) -> tuple[int, ...]:
        """Traced batches, in order."""
        return tuple(sorted(self._traced))

    def at(self, batch: int) -> Trace:
        """Return the trace for a batch."""
        found = self._traced.get(batch)
        if found is not None:
            return found
        if self._affine is None and self._is_affine and len(self._traced) >= _PROOF:
            self._affine = _proved(self._traced)
            self._is_affine = self._affine is not None
        if self._affine is not None and batch > 1:  # an axis of 1 is broadcast, and copies of it are left out
            try:
                return self._affine.at(batch)
            except NotAffineError:  # such as a size that would be negative there
                pass
        found = self._traced[batch] = self._trace_of(batch)
        return found


#: Traces that are needed to show that sizes are affine in the batch.
_PROOF = 3


def _proved(traced: Mapping[int, Trace]) -> AffineBatch | None:
    """Return the traces of the smallest and the largest batch if all others can be derived from them."""
    batches = sorted(traced)
    found = AffineBatch(traced[batches[0]], traced[batches[-1]])
    try:
        holds = all(is_same_step(found.at(n), traced[n]) for n in batches[1:-1])
    except NotAffineError:
        return None
    return found if holds else None


_Blend = Callable[[int, int], int]


def _blend_of(low: int, high: int, batch: int) -> _Blend:
    if low == high:
        raise NotAffineError("traces of one batch")

    def blend(a: int, b: int) -> int:
        if a == b:
            return a
        whole, rest = divmod((b - a) * (batch - low), high - low)
        if rest or a + whole < 0:
            raise NotAffineError(f"{a} at batch {low}, {b} at batch {high}")
        return a + whole

    return blend


def _operator(a: Operator, b: Operator, blend: _Blend) -> Operator:
    if (a.name, a.phase, a.module, a.stack, a.stream, a.iteration) != (
        b.name, b.phase, b.module, b.stack, b.stream, b.iteration
    ):  # fmt: skip
        raise NotAffineError(f"{a.name} and {b.name} at place {a.index}")
    if a.inputs == b.inputs and a.outputs == b.outputs and a.arguments == b.arguments:
        return a
    return replace(
        a, inputs=_tensors(a.inputs, b.inputs, blend), outputs=_tensors(a.outputs, b.outputs, blend),
        arguments=_value(a.arguments, b.arguments, blend),
    )  # fmt: skip


def _tensors(a: Sequence[TensorRecord], b: Sequence[TensorRecord], blend: _Blend) -> tuple[TensorRecord, ...]:
    if len(a) != len(b):
        raise NotAffineError(f"{len(a)} and {len(b)} tensors")
    return tuple(_tensor(x, y, blend) for x, y in zip(a, b, strict=True))


def _tensor(a: TensorRecord, b: TensorRecord, blend: _Blend) -> TensorRecord:
    if a == b:
        return a
    if (a.dtype, a.storage, len(a.shape), len(a.stride)) != (b.dtype, b.storage, len(b.shape), len(b.stride)):
        raise NotAffineError(f"storages {a.storage} and {b.storage}")
    return TensorRecord(
        tuple(map(blend, a.shape, b.shape)), tuple(map(blend, a.stride, b.stride)), a.dtype, a.storage,
        blend(a.offset, b.offset),
    )  # fmt: skip


def _value(a: Any, b: Any, blend: _Blend) -> Any:
    """Return an argument; floating-point arguments, which do not affect cost, are taken from the first trace."""
    if isinstance(a, bool) or isinstance(b, bool) or type(a) is not type(b):
        if a != b:
            raise NotAffineError(f"arguments {a!r} and {b!r}")
        return a
    if isinstance(a, int):
        return blend(a, b)
    if isinstance(a, float):
        return a
    if isinstance(a, Mapping):
        if a.keys() != b.keys():
            raise NotAffineError("arguments of other names")
        return {name: _value(a[name], b[name], blend) for name in a}
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            raise NotAffineError("arguments of other lengths")
        return type(a)(_value(x, y, blend) for x, y in zip(a, b, strict=True))
    if a != b:
        raise NotAffineError(f"arguments {a!r} and {b!r}")
    return a


def _event(a: AllocEvent | FreeEvent, b: AllocEvent | FreeEvent, blend: _Blend) -> AllocEvent | FreeEvent:
    if a == b:
        return a
    if not (isinstance(a, AllocEvent) and isinstance(b, AllocEvent)) or (a.storage, a.operator, a.stream) != (
        b.storage, b.operator, b.stream
    ):  # fmt: skip
        raise NotAffineError("other allocations")
    return replace(a, size_bytes=blend(a.size_bytes, b.size_bytes))


def _storages(a: Mapping[int, Storage], b: Mapping[int, Storage], blend: _Blend) -> dict[int, Storage]:
    if a.keys() != b.keys():
        raise NotAffineError("other storages")
    return {number: _storage(known, b[number], blend) for number, known in a.items()}


def _storage(a: Storage, b: Storage, blend: _Blend) -> Storage:
    if a == b:
        return a
    if (a.kind, a.name) != (b.kind, b.name):
        raise NotAffineError(f"{a.kind} and {b.kind} storages")
    return replace(a, size_bytes=blend(a.size_bytes, b.size_bytes))
