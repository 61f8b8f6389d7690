"""Records one call of PyTorch on shapes, and counts what it touches from the tensors themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roller.insight.cost.kernel_launch_types import FusedKernel, HostWait, Kernel, MemoryKernel
from roller.insight.trace.pytorch.data_dependent_values import MetaOperators
from roller.insight.trace.pytorch.operator_origin import OriginTracker
from roller.insight.trace.pytorch.operator_recorder import OperatorRecorder
from roller.insight.trace.pytorch.project_stack_frames import Stacks
from roller.insight.trace.trace import Operator

aten = torch.ops.aten


@dataclass(frozen=True)
class Case:
    """One call; ``reads`` and ``writes`` are what its kernels touch, in bytes or as tensors, each as often as named.

    By default every tensor that is given is read once, and every tensor that is returned is written once. ``results``
    are those of an operator that this build of PyTorch cannot run on shapes.
    """

    row: str
    call: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    reads: Sequence[Any] | None = None
    writes: Callable[[tuple[Any, ...]], Sequence[Any]] | Sequence[Any] | None = None
    launches: int | None = None
    results: Sequence[Any] | None = None

    def __repr__(self) -> str:
        return f"{self.row}{[tuple(t.shape) for t in leaves(self.args)]}"


class Draw:
    """Draws shapes, dtypes and layouts; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def size(self, low: int = 3, high: int = 12) -> int:
        return self.random.randint(low, high)

    def shape(self, rank: int) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(rank))

    def dtype(self) -> torch.dtype:
        return self.random.choice((torch.float32, torch.float16, torch.bfloat16))

    def tensor(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, layout: str | None = None) -> Any:
        """Return a tensor of the shape in a layout: dense, transposed, cut out, repeated, or channels innermost."""
        layout = layout or self.random.choice(("dense", "turned", "cut", "repeated", "last"))
        shape = tuple(shape)
        make = lambda s: torch.empty(s, dtype=dtype, device="meta")  # noqa: E731
        if layout == "turned" and len(shape) > 1:
            return make((*shape[:-2], shape[-1], shape[-2])).transpose(-1, -2)
        if layout == "cut" and shape:
            return make((*shape[:-1], 2 * shape[-1] + 1))[..., 1 : 2 * shape[-1] + 1 : 2]
        if layout == "repeated" and len(shape) > 1:
            return make((1, *shape[1:])).expand(shape)
        if layout == "last" and len(shape) == 4:
            return make(shape).to(memory_format=torch.channels_last)
        return make(shape)

    def dense(self, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
        return torch.empty(shape, dtype=dtype, device="meta")

    def index(self, *shape: int) -> Any:
        return self.dense(*shape, dtype=torch.int64)


def leaves(values: Any) -> list[Any]:
    """Return the tensors in nested values."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    if isinstance(values, str) or not np.iterable(values):
        return []
    return [t for v in values for t in leaves(v)]


class Given(MetaOperators):
    """Results that are given, not computed."""

    def __init__(self, results: Sequence[Any]) -> None:
        super().__init__(0.5, lambda: "test")
        self.results = tuple(results)

    def run_operator(self, func: Any, args: Any, kwargs: Any, ours: bool = True) -> Any:
        return self.results


def recorded(
    call: Callable[..., Any], *args: Any, given: Sequence[Any] | None = None, **kwargs: Any
) -> tuple[list[Operator], tuple[Any, ...]]:
    """Return the operators that a call dispatches, and the tensors it returns."""
    recorder = OperatorRecorder(
        OriginTracker({}, Stacks(Path.cwd())), MetaOperators(0.5, lambda: "test") if given is None else Given(given)
    )
    with torch.no_grad(), recorder:
        result = call(*args, **kwargs) if given is None else recorder.__torch_dispatch__(call, (), args, kwargs)
    recorder.stop_recording_frees()
    return recorder.operators, tuple(leaves(result if isinstance(result, (tuple, list)) else (result,)))


def addresses(tensor: Any) -> np.ndarray:
    """Return the address of every byte of a tensor's elements, each once: walked, not computed."""
    at = np.zeros((1,), dtype=np.int64) + tensor.storage_offset()
    for extent, stride in zip(tensor.shape, tensor.stride(), strict=True):
        at = (at[..., None] + np.arange(extent) * stride).reshape(-1)
    return np.unique(at)


def touched(values: Sequence[Any]) -> float:
    """Return bytes: numbers as they are, of tensors those they really lie in."""
    return float(sum(v if isinstance(v, (int, float)) else addresses(v).size * v.element_size() for v in values))


def each_once(tensors: Sequence[Any]) -> list[Any]:
    """Return tensors without those that are the same memory in the same layout as an earlier one."""
    same = {(t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride()): t for t in tensors}
    return list(same.values())


def bytes_of(launches: Sequence[Any]) -> tuple[float, float]:
    """Return what launches read and write."""
    read = written = 0.0
    for launch in launches:
        if isinstance(launch, Kernel):
            read += launch.count * sum(t.nbytes for t in launch.expr.inputs)
            written += launch.count * sum(t.nbytes for t in launch.expr.output_tensors)
        elif isinstance(launch, (MemoryKernel, FusedKernel)):
            read, written = read + launch.read_bytes, written + launch.written_bytes
        else:
            assert isinstance(launch, HostWait)
            read += launch.read_bytes
    return read, written
