"""Predicts the times of changed and new tasks, each with its provenance."""

# A time comes from the first of these sources that has it: the user's measurement, the device's model, or calibration
# by similar tasks of the profile.

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import Any, Literal, NamedTuple

from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.insight.cost.operator_price import Price, Pricer
from roller.insight.cost.step_cost import pricer_with_disk_cache
from roller.insight.step.graph import Provenance, StepGraph, Task
from roller.insight.step.parse_profile_dtype_names import dtype_from_profile_name, element_bytes
from roller.insight.trace.trace import Operator, TensorRecord
from roller.insight.whatif.task_selection import compute_tasks
from roller_runtime.core.dtypes import FLOATS

#: Resource that limits a task.
Bound = Literal["compute", "memory"]
#: Pattern of the names of matrix-product kernels. They change between releases, so prices and shapes take precedence.
_PRODUCTS = re.compile(
    r"gemm|conv|wgrad|dgrad|xmma|cutlass|winograd|attention|flash|fmha|mma_|linear|matmul|b?addb?mm|::b?mm\b|[BM]mBackward",
    re.I,
)
_SHORT = frozenset({"float16", "bfloat16"})
#: Pattern of the names of 16-bit kernels in cuBLAS, CUTLASS, PyTorch and hipBLASLt; hipBLASLt has B and H for dtypes.
_SHORT_NAMES = re.compile(r"bf16|bfloat16|fp16|f16|half|hgemm|h884|h1688|Cijk_\w*?_[BH][BHS][A-Z]*_", re.I)
#: Minimum size in bytes of a task that calibrates the bandwidth; latency limits smaller tasks.
_TWIN_BYTES = 1 << 20


class PricedValue(NamedTuple):
    """A value, in microseconds or as a factor, and its provenance."""

    value: float
    provenance: Provenance


class TaskPrices:
    """Prices for one graph: its ``device`` prices new kernels, and its tasks calibrate the bandwidth."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self._pricers: dict[str, Pricer] = {}

    def price_stream(self, name: str, read_bytes: float, written_bytes: float, launches: int = 1) -> PricedValue:
        """Return the time of memory-bound kernels, in microseconds, measured or from the bytes that they move."""
        if name in self.graph.measured_kernels_us:
            return PricedValue(self.graph.measured_kernels_us[name], "measured")
        if self.graph.device is not None:
            found = self._pricer_for(self.graph.device).kernels.price_stream(read_bytes, written_bytes, launches)
            return PricedValue(1e6 * found.seconds, "predicted")
        if self.calibrated_bytes_per_us:
            return PricedValue((read_bytes + written_bytes) / self.calibrated_bytes_per_us, "calibrated")
        raise RollerError(
            f"{self.graph.name}: price of {name}: expected a device, a measured time or a task that moves a known "
            f"number of bytes, got none of them. Name the device (--device, device=)."
        )

    @cached_property
    def calibrated_bytes_per_us(self) -> float:
        """Median bytes per microsecond of the fastest quarter of memsets and non-product kernels; 0 without any."""
        rates = [t.size_bytes / t.duration_us for t in self.graph.tasks
                 if t.kind == "set" and t.size_bytes >= _TWIN_BYTES and t.duration_us]  # fmt: skip
        own = compute_tasks(self.graph)  # kernels or, on a CPU, operators; no launch calls
        found = [r for t in self.graph.tasks if t.id in own and (r := _bytes_per_us(t))]
        # the fastest quarter: the others move more bytes than their inputs have
        return median(sorted(found + rates)[-max(1, len(found + rates) // 4) :]) if found + rates else 0.0

    def limiting_resource(self, task: Task) -> Bound:
        """Return the resource that limits a task, from its price, shapes or name."""
        if task.resource:
            return "compute" if task.resource == "compute" else "memory"
        operator, own = self.operator_of_task(task), self.graph.device
        if operator is not None and own is not None and own.traits.blocks:
            return "compute" if self._price_operator(operator, own).resource == "compute" else "memory"
        return (
            "compute" if operator is not None or _PRODUCTS.search(f"{task.name} {task.context.operator}") else "memory"
        )

    def operator_of_task(self, task: Task) -> Operator | None:
        """Return a task's operator: the traced one, else a matrix product from the profile's shapes, else ``None``."""
        return self.graph.operators.get(task.id) or matrix_product_of_task(task)

    def time_ratio(self, task: Task, device: DeviceSpec | None = None, dtype: str | None = None) -> PricedValue | None:
        """Return a task's time on another device or in another dtype, relative to its own; ``None`` if unknown."""
        operator, own = self.operator_of_task(task), self.graph.device
        if own is None or operator is None or not all(x.traits.blocks for x in (own, device or own)):
            return None  # on a CPU the price of an operator depends on the step around it
        changed = operator if dtype is None else cast_operator(operator, dtype)
        before = self._price_operator(operator, own)
        after = self._price_operator(changed, device or own)
        if not before.kernels or not after.kernels or before.seconds <= 0.0:
            return None
        return PricedValue(after.seconds / before.seconds, "predicted")

    def _price_operator(self, operator: Operator, device: DeviceSpec) -> Price:
        return self._pricer_for(device).price_operator(operator)

    def _pricer_for(self, device: DeviceSpec) -> Pricer:
        if device.name not in self._pricers:
            self._pricers[device.name] = pricer_with_disk_cache(device, settings=self.graph.settings)
        return self._pricers[device.name]


def cast_operator(operator: Operator, dtype: str) -> Operator:
    """Return an operator whose float32 tensors have the dtype ``dtype`` instead."""

    def cast_records(records: tuple[TensorRecord, ...]) -> tuple[TensorRecord, ...]:
        return tuple(replace(t, dtype=dtype) if t.dtype == "float32" else t for t in records)

    return replace(operator, inputs=cast_records(operator.inputs), outputs=cast_records(operator.outputs))


#: Maps each matrix-product operator in profiles to the positions of its factors.
_FACTORS: Mapping[str, tuple[int, int]] = {
    "aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)
}  # fmt: skip


def matrix_product_of_task(task: Task) -> Operator | None:
    """Return the matrix product of a profile's task; ``None`` for other operators or without shapes.

    Examples
    --------
    >>> from roller.insight.step.graph import Lane, TaskContext
    >>> context = TaskContext(operator="aten::mm", shapes=((64, 32), (32, 16)), dtypes=("float", "float"))
    >>> gemm = Task(0, "gemm", "kernel", Lane(0, "stream", "7"), 9.0, 0.0, 9.0, context=context)
    >>> matrix_product_of_task(gemm).outputs[0].shape
    (64, 16)
    """
    at = _FACTORS.get(task.context.operator)
    shapes, dtypes = task.context.shapes, task.context.dtypes
    if at is None or len(shapes) <= at[1] or len(dtypes) <= at[1]:
        return None
    a, b = (tuple(shapes[n]) for n in at)
    dtype = dtype_from_profile_name(dtypes[at[0]])
    if dtype not in FLOATS or len(a) not in (2, 3) or len(a) != len(b) or a[-1] != b[-2] or not all((*a, *b)):
        return None
    records = [_contiguous_record(s, dtype, n) for n, s in enumerate((a, b, (*a[:-1], b[-1])))]
    name = "aten.mm.default" if len(a) == 2 else "aten.bmm.default"
    return Operator(task.id, name, "forward", tuple(records[:2]), (records[2],))


def _contiguous_record(shape: tuple[int, ...], dtype: str, storage: int) -> TensorRecord:
    stride = tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))
    return TensorRecord(shape, stride, dtype, storage)


def uses_float32(task: Task) -> bool:
    """Return whether a task has float32 inputs; true if the profile does not give dtypes."""
    known = {dtype_from_profile_name(d) for d in task.context.dtypes if d}
    return not known or "float32" in known


def uses_16_bit_floats(task: Task) -> bool:
    """Return whether a task computes on 16-bit floats, judged by its operator's dtypes if known, else by its name.

    Examples
    --------
    >>> from roller.insight.step.graph import Lane
    >>> names = "ampere_fp16_s16816gemm_fp16_128x128", "Cijk_Alik_Bljk_BBS_BH_MT32x32", "ampere_sgemm_128x64_tn"
    >>> [uses_16_bit_floats(Task(0, name, "kernel", Lane(0, "stream", "7"), 9.0, 0.0, 9.0)) for name in names]
    [True, True, False]
    """
    known = {dtype_from_profile_name(d) for d in task.context.dtypes if d}.intersection(FLOATS)
    return bool(known & _SHORT) if known else _SHORT_NAMES.search(task.name) is not None


def operator_input_bytes(task: Task) -> float:
    """Return the total size, in bytes, of those inputs of a task's operator whose shapes are known."""
    return _bytes_of_shapes(task, task.context.shapes)


def _bytes_of_shapes(task: Task, shapes: Sequence[Any]) -> float:
    return math.fsum(
        math.prod(shape) * element_bytes(dtype)
        for shape, dtype in zip(shapes, task.context.dtypes, strict=False)
        if shape and all(isinstance(n, int) for n in shape)
    )


def _bytes_per_us(task: Task) -> float:
    """Return a kernel's bytes per microsecond; 0 for products and for kernels with small inputs."""
    if matrix_product_of_task(task) is not None or _PRODUCTS.search(f"{task.name} {task.context.operator}"):
        return 0.0
    read = operator_input_bytes(task)
    # the result is assumed to be as large as the first input
    moved = read + _bytes_of_shapes(task, task.context.shapes[:1])
    return moved / task.duration_us if read >= _TWIN_BYTES and task.duration_us else 0.0
