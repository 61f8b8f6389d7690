"""Dispatch mode below autograd that records every operator and the lifetime of every storage."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from roller.insight.trace.progress import report_progress
from roller.insight.trace.pytorch.compat import (
    TorchDispatchMode,
    schema_arguments,
    without_torch_function,
    written_argument_names,
)
from roller.insight.trace.pytorch.data_dependent_values import MetaOperators
from roller.insight.trace.pytorch.gpu_result_layouts import to_gpu_layout
from roller.insight.trace.pytorch.operator_origin import OriginTracker
from roller.insight.trace.trace import AllocEvent, FreeEvent, Kind, Operator, Storage, TensorRecord

#: Operators without kernels, memory or host time.
_SILENT = {"aten::detach", "aten::detach_", "aten::lift_fresh", "aten::alias", "aten::set_.source_Tensor"}
_MARK = "_roller_storage"


class OperatorRecorder(TorchDispatchMode):
    """Records the operators and events of a trace while the mode is active.

    Parameters
    ----------
    origins
        Provider of an operator's origin.
    values
        Runner for operators with known and default values.
    device
        Device type of the tensors that represent device tensors; all other tensors belong to the host.
    name
        Name of the device in arguments; if it is ``"cpu"``, operators on host tensors are also recorded.
    """

    def __init__(self, origins: OriginTracker, values: MetaOperators, device: str = "meta", name: str = "cuda") -> None:
        super().__init__()
        self.origins = origins
        self.values = values
        self.device = device
        self.type = name
        self.operators: list[Operator] = []
        self.events: list[AllocEvent | FreeEvent] = []
        self.storages: dict[int, Storage] = {}
        self.iteration = 0
        #: Kind of a storage that is copied from the host.
        self.copied_kind: Kind = "unknown"
        self._quiet = False
        self._dtypes: dict[torch.dtype, str] = {}
        self._finalizers: list[weakref.finalize] = []  # type: ignore[type-arg]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator on meta tensors and record it if it runs on the device."""
        kwargs = kwargs or {}
        with without_torch_function():
            if (func.namespace != "aten" and func.namespace == "prim") or func.name() in _SILENT:
                return func(*args, **kwargs)
            if self._quiet:
                return self.values.run_operator(
                    func, args, kwargs, any(t.is_meta for t in _iterate_tensors((*args, *kwargs.values())))
                )
            read = [
                tensor for tensor in _iterate_tensors((*args, *kwargs.values())) if tensor.device.type == self.device
            ]
            # Frees that follow belong to this operator, so the inputs are recorded before it runs.
            inputs = tuple(self.record_tensor(tensor) for tensor in read)
            result = self.values.run_operator(func, args, kwargs, bool(read))
            if self.type == "cuda":
                result = to_gpu_layout(func, args, result)
            outputs = tuple(t for t in _iterate_tensors((result,)) if t.device.type == self.device)
            if read or outputs or (self.type == "cpu" and func.namespace == "aten"):
                self._record_operator(func, args, kwargs, inputs, outputs)
            return result

    def record_tensor(self, tensor: torch.Tensor, kind: Kind = "unknown", name: str = "") -> TensorRecord:
        """Return the record of a tensor (for a sparse tensor, of its values); record a new storage as allocated."""
        if tensor.layout is torch.sparse_coo:
            self.number_of_recorded_storage(tensor._indices(), kind, name)
            return self.record_tensor(tensor._values(), kind, name)
        return TensorRecord(
            tuple(tensor.shape),
            tuple(tensor.stride()) if tensor.layout is torch.strided else (),
            self._dtype_name(tensor.dtype),
            self.number_of_recorded_storage(tensor, kind, name),
            int(tensor.storage_offset()) if tensor.layout is torch.strided else 0,
        )

    def number_of_recorded_storage(self, tensor: torch.Tensor, kind: Kind = "unknown", name: str = "") -> int:
        """Return the number of a tensor's storage; a new storage is recorded as allocated."""
        if tensor.layout is torch.sparse_coo:  # two tensors: its values and their indices
            self.number_of_recorded_storage(tensor._indices(), kind, name)
            return self.number_of_recorded_storage(tensor._values(), kind, name)
        storage = tensor.untyped_storage()
        known = storage.__dict__.get(_MARK)
        if known is not None and known[0] is self.storages:
            return int(known[1])
        number = len(self.storages)
        storage.__dict__[_MARK] = (self.storages, number)
        size_bytes = int(storage.nbytes())
        self.storages[number] = Storage(kind, name, size_bytes)
        self.events.append(AllocEvent(number, size_bytes, len(self.operators) - 1))
        finalizer = weakref.finalize(storage, self._record_free, number)
        finalizer.atexit = False
        self._finalizers.append(finalizer)
        return number

    def name_storage(self, tensor: torch.Tensor, kind: Kind, name: str = "") -> None:
        """Set the kind and name of a device tensor's storage if its kind is unknown."""
        with without_torch_function():
            if tensor.device.type != self.device:
                return
            number = self.number_of_recorded_storage(tensor, kind, name)
        known = self.storages[number]
        if known.kind == "unknown":
            self.storages[number] = Storage(kind, name, known.size_bytes)

    @contextmanager
    def pause_recording(self) -> Iterator[None]:
        """Pause recording within this context."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def stop_recording_frees(self) -> None:
        """Stop recording frees, so that live storages outlive the trace."""
        for finalizer in self._finalizers:
            finalizer.detach()
        self._finalizers.clear()

    def _record_free(self, number: int) -> None:
        self.events.append(FreeEvent(number, len(self.operators) - 1))

    def _dtype_name(self, dtype: torch.dtype) -> str:
        text = self._dtypes.get(dtype)
        if text is None:
            text = self._dtypes[dtype] = str(dtype).removeprefix("torch.")
        return text

    def _record_operator(
        self, func: Any, args: Any, kwargs: Any, inputs: tuple[TensorRecord, ...], outputs: Sequence[torch.Tensor]
    ) -> None:
        place, index = self.origins.store_and_return_origin(), len(self.operators)
        recomputed = self.origins.is_recomputing
        count = iter(range(len(inputs)))
        given = {name: argument for (name, _, _), argument in zip(schema_arguments(func), args, strict=False)}
        arguments = {
            name: self._argument_in_trace_format(given[name] if name in given else kwargs.get(name, default), count)
            for name, _, default in schema_arguments(func)
        }
        # The operator is appended before its results are numbered, so that their allocations refer to it.
        self.operators.append(
            Operator(
                index, str(func), self.origins.phase, inputs, (), arguments, place.module, place.stack,
                recomputed=recomputed, iteration=self.iteration, outside=place.outside,
            )
        )  # fmt: skip
        self._report_progress(index + 1)
        kind = self.copied_kind if not inputs and _reads_host_tensor(args) else "unknown"
        results = tuple(self.record_tensor(tensor, kind) for tensor in outputs)
        if not outputs and written_argument_names(func):  # operators such as `_foreach_add_` return nothing, but write
            targets = _iterate_tensors([given.get(name, kwargs.get(name)) for name in written_argument_names(func)])
            results = tuple(self.record_tensor(t) for t in targets if t.device.type == self.device)
        object.__setattr__(self.operators[-1], "outputs", results)

    def _report_progress(self, done: int) -> None:
        if self.origins.stopped is not None:
            raise self.origins.stopped
        try:
            report_progress("trace", done)
        except BaseException as error:
            self.origins.stopped = error
            raise

    def _argument_in_trace_format(self, value: Any, count: Iterator[int]) -> Any:
        """Return an argument in the format of a trace."""
        if isinstance(value, torch.Tensor):
            if value.device.type == self.device:
                return {"tensor": next(count)}
            if value.dim() == 0 and value.device.type == "cpu":
                return value.item()
            return {"host": list(value.shape), "dtype": self._dtype_name(value.dtype)}
        if isinstance(value, (list, tuple)):
            return [self._argument_in_trace_format(v, count) for v in value]
        if isinstance(value, torch.dtype):
            return self._dtype_name(value)
        if isinstance(value, torch.device):
            return self.type if value.type == self.device else str(value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        return str(value)


def _reads_host_tensor(args: Any) -> bool:
    return any(tensor.dim() > 0 and not tensor.is_meta for tensor in _iterate_tensors(args))


def _iterate_tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _iterate_tensors(value)
