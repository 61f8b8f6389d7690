"""Writes down every operator that arrives below autograd, and the life of every storage."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from roller.insight.trace.progress import report
from roller.insight.trace.pytorch.compat import TorchDispatchMode, argument_names, plain, written
from roller.insight.trace.pytorch.data_dependent import Values
from roller.insight.trace.pytorch.operator_origin import OriginTracker
from roller.insight.trace.trace import AllocEvent, FreeEvent, Kind, Operator, Storage, TensorRecord

#: Bookkeeping: no kernel, no memory, and nothing that a host would spend time on.
_SILENT = {"aten::detach", "aten::detach_", "aten::lift_fresh", "aten::alias", "aten::set_.source_Tensor"}
_MARK = "_roller_storage"


class OperatorRecorder(TorchDispatchMode):
    """Keeps the records of a trace while it is entered.

    Parameters
    ----------
    places
        Where the model is.
    values
        What is known, and declared, of values.
    device
        Type of the tensors that stand for those of the device; all others are the host's.
    name
        What the device is called in arguments; where it is ``"cpu"``, what runs on the host's tensors runs on it too.
    """

    def __init__(self, origins: OriginTracker, values: Values, device: str = "meta", name: str = "cuda") -> None:
        super().__init__()
        self.origins = origins
        self.values = values
        self.device = device
        self.type = name
        self.operators: list[Operator] = []
        self.events: list[AllocEvent | FreeEvent] = []
        self.storages: dict[int, Storage] = {}
        self.iteration = 0
        self._quiet = False
        self._dtypes: dict[torch.dtype, str] = {}
        self._finalizers: list[weakref.finalize] = []  # type: ignore[type-arg]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator on shapes, and write it down where it is one of the device."""
        kwargs = kwargs or {}
        with plain():
            if (func.namespace != "aten" and func.namespace == "prim") or func.name() in _SILENT:
                return func(*args, **kwargs)
            if self._quiet:
                return self.values.run(func, args, kwargs, any(t.is_meta for t in _tensors((*args, *kwargs.values()))))
            read = [tensor for tensor in _tensors((*args, *kwargs.values())) if tensor.device.type == self.device]
            # Frees that follow belong to this operator, so the inputs are written down before it runs.
            inputs = tuple(self.record(tensor) for tensor in read)
            result = self.values.run(func, args, kwargs, bool(read))
            outputs = tuple(t for t in _tensors((result,)) if t.device.type == self.device)
            if read or outputs or (self.type == "cpu" and func.namespace == "aten"):
                self._write(func, args, kwargs, inputs, outputs)
            return result

    def record(self, tensor: torch.Tensor, kind: Kind = "unknown", name: str = "") -> TensorRecord:
        """Return what is written of a tensor; a storage that is new is an allocation. Of a sparse one, its values."""
        if tensor.layout is torch.sparse_coo:
            self.number(tensor._indices(), kind, name)
            return self.record(tensor._values(), kind, name)
        return TensorRecord(
            tuple(tensor.shape),
            tuple(tensor.stride()) if tensor.layout is torch.strided else (),
            self._dtype(tensor.dtype),
            self.number(tensor, kind, name),
            int(tensor.storage_offset()) if tensor.layout is torch.strided else 0,
        )

    def number(self, tensor: torch.Tensor, kind: Kind = "unknown", name: str = "") -> int:
        """Return the number of a tensor's storage; the first time it is seen, it is allocated."""
        if tensor.layout is torch.sparse_coo:  # two tensors: what it holds, and where
            self.number(tensor._indices(), kind, name)
            return self.number(tensor._values(), kind, name)
        storage = tensor.untyped_storage()
        known = storage.__dict__.get(_MARK)
        if known is not None and known[0] is self.storages:
            return int(known[1])
        number = len(self.storages)
        storage.__dict__[_MARK] = (self.storages, number)
        size_bytes = int(storage.nbytes())
        self.storages[number] = Storage(kind, name, size_bytes)
        self.events.append(AllocEvent(number, size_bytes, len(self.operators) - 1))
        finalizer = weakref.finalize(storage, self._freed, number)
        finalizer.atexit = False
        self._finalizers.append(finalizer)
        return number

    def name(self, tensor: torch.Tensor, kind: Kind, name: str = "") -> None:
        """Say what a tensor's storage is for; the host's are of no interest."""
        with plain():
            if tensor.device.type != self.device:
                return
            number = self.number(tensor, kind, name)
        known = self.storages[number]
        if known.kind == "unknown":
            self.storages[number] = Storage(kind, name, known.size_bytes)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Write nothing down."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def close(self) -> None:
        """Write down no further frees: what is alive now outlives the trace."""
        for finalizer in self._finalizers:
            finalizer.detach()
        self._finalizers.clear()

    def _freed(self, number: int) -> None:
        self.events.append(FreeEvent(number, len(self.operators) - 1))

    def _dtype(self, dtype: torch.dtype) -> str:
        text = self._dtypes.get(dtype)
        if text is None:
            text = self._dtypes[dtype] = str(dtype).removeprefix("torch.")
        return text

    def _write(
        self, func: Any, args: Any, kwargs: Any, inputs: tuple[TensorRecord, ...], outputs: Sequence[torch.Tensor]
    ) -> None:
        place, index = self.origins.dispatched(), len(self.operators)
        recomputed = self.origins.recomputing
        count = iter(range(len(inputs)))
        given = {name: argument for (name, _, _), argument in zip(argument_names(func), args, strict=False)}
        arguments = {
            name: self._plain(given[name] if name in given else kwargs.get(name, default), count)
            for name, _, default in argument_names(func)
        }
        # The operator stands in the list before its results are numbered, so that their allocations name it.
        self.operators.append(
            Operator(
                index, str(func), self.origins.phase, inputs, (), arguments, place.module, place.stack,
                recomputed=recomputed, iteration=self.iteration,
            )
        )  # fmt: skip
        self._report(index + 1)
        results = tuple(self.record(tensor) for tensor in outputs)
        if not outputs and written(func):  # `_foreach_add_` and its like return nothing, but write
            targets = _tensors([given.get(name, kwargs.get(name)) for name in written(func)])
            results = tuple(self.record(t) for t in targets if t.device.type == self.device)
        object.__setattr__(self.operators[-1], "outputs", results)

    def _report(self, done: int) -> None:
        if self.origins.stopped is not None:
            raise self.origins.stopped
        try:
            report("trace", done)
        except BaseException as error:
            self.origins.stopped = error
            raise

    def _plain(self, value: Any, count: Iterator[int]) -> Any:
        """Return an argument as a trace holds it."""
        if isinstance(value, torch.Tensor):
            if value.device.type == self.device:
                return {"tensor": next(count)}
            if value.dim() == 0 and value.device.type == "cpu":
                return value.item()
            return {"host": list(value.shape), "dtype": self._dtype(value.dtype)}
        if isinstance(value, (list, tuple)):
            return [self._plain(v, count) for v in value]
        if isinstance(value, torch.dtype):
            return self._dtype(value)
        if isinstance(value, torch.device):
            return self.type if value.type == self.device else str(value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        return str(value)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
