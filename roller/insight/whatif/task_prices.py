"""What changed and new tasks take: measured by the user, by the device's model, by a twin in the profile, or a factor.

They are asked in this order, and each time says which of them it is from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import Any, Literal, NamedTuple

from roller.core.dtypes import FLOATS
from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.insight.cost.operators import Price, Pricer
from roller.insight.cost.step_cost import cached_pricer
from roller.insight.step.graph import Provenance, StepGraph, Task
from roller.insight.step.profile_dtypes import dtype_from_profile_name, element_bytes
from roller.insight.trace.trace import Operator, TensorRecord
from roller.insight.whatif.select import work

#: What bounds a task.
Bound = Literal["compute", "memory"]
#: Kernels of products by name, where neither a price nor shapes tell: names rot, so this comes last.
_PRODUCTS = re.compile(
    r"gemm|conv|wgrad|dgrad|xmma|cutlass|winograd|attention|flash|fmha|mma_|linear|matmul|b?addb?mm|::b?mm\b|[BM]mBackward",
    re.I,
)
_SHORT = frozenset({"float16", "bfloat16"})
#: Kernels whose name tells 16 bits: of cuBLAS, CUTLASS and PyTorch; of hipBLASLt, whose B and H stand for types.
_SHORT_NAMES = re.compile(r"bf16|bfloat16|fp16|f16|half|hgemm|h884|h1688|Cijk_\w*?_[BH][BHS][A-Z]*_", re.I)
#: A twin moves so many bytes at least: shorter ones are all latency.
_TWIN_BYTES = 1 << 20


class Priced(NamedTuple):
    """A number, microseconds or a factor, and where it is from."""

    value: float
    provenance: Provenance


class TaskPrices:
    """Prices for one graph.

    Parameters
    ----------
    graph
        Its ``device`` prices new kernels; its own tasks are twins.
    """

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self._pricers: dict[str, Pricer] = {}

    def stream(self, name: str, read_bytes: float, written_bytes: float, launches: int = 1) -> Priced:
        """Return the time of kernels that only read and write, so many bytes in all.

        Raises
        ------
        RollerError
            No table, device or twin tells.
        """
        if name in self.graph.measured_kernels_us:
            return Priced(self.graph.measured_kernels_us[name], "measured")
        if self.graph.device is not None:
            found = self._pricer(self.graph.device).kernels.price_stream(read_bytes, written_bytes, launches)
            return Priced(1e6 * found.seconds, "predicted")
        if self.twin_bytes_per_us:
            return Priced((read_bytes + written_bytes) / self.twin_bytes_per_us, "calibrated")
        raise RollerError(
            f"{self.graph.name}: price of {name}: expected a device, a measured time or a task that moves a known "
            f"number of bytes, got none of them. Name the device (--device, device=)."
        )

    @cached_property
    def twin_bytes_per_us(self) -> float:
        """Bytes per microsecond of the profile's own memsets and of its kernels that are no products; 0 without any.

        The median of the fastest quarter of them: others move more than their inputs tell.
        """
        rates = [t.size_bytes / t.duration_us for t in self.graph.tasks
                 if t.kind == "set" and t.size_bytes >= _TWIN_BYTES and t.duration_us]  # fmt: skip
        own = work(self.graph)  # kernels, or on a processor the operators that compute: no call that launches
        found = [r for t in self.graph.tasks if t.id in own and (r := _rate(t))]
        return median(sorted(found + rates)[-max(1, len(found + rates) // 4) :]) if found + rates else 0.0

    def bound(self, task: Task) -> Bound:
        """Return what bounds a task: its price says, its shapes, or at last its name."""
        if task.resource:
            return "compute" if task.resource == "compute" else "memory"
        operator, own = self.operator(task), self.graph.device
        if operator is not None and own is not None and own.traits.blocks:
            return "compute" if self._price(operator, own).resource == "compute" else "memory"
        return (
            "compute" if operator is not None or _PRODUCTS.search(f"{task.name} {task.context.operator}") else "memory"
        )

    def operator(self, task: Task) -> Operator | None:
        """Return what a task computes: as traced, or a product by the shapes the profile has."""
        return self.graph.operators.get(task.id) or product(task)

    def ratio(self, task: Task, device: DeviceSpec | None = None, dtype: str | None = None) -> Priced | None:
        """Return by how much longer a task's operator takes on another device, or of another dtype, by the model.

        ``None`` where the profile's device is not known, or nothing says what the task computes.
        """
        operator, own = self.operator(task), self.graph.device
        if own is None or operator is None or not all(x.traits.blocks for x in (own, device or own)):
            return None  # what a processor takes depends on the step around: its operators have no price alone
        changed = operator if dtype is None else cast(operator, dtype)
        before = self._price(operator, own)
        after = self._price(changed, device or own)
        if not before.kernels or not after.kernels or before.seconds <= 0.0:
            return None
        return Priced(after.seconds / before.seconds, "predicted")

    def _price(self, operator: Operator, device: DeviceSpec) -> Price:
        return self._pricer(device).price_operator(operator)

    def _pricer(self, device: DeviceSpec) -> Pricer:
        if device.name not in self._pricers:
            self._pricers[device.name] = cached_pricer(device)
        return self._pricers[device.name]


def cast(operator: Operator, dtype: str) -> Operator:
    """Return an operator with ``dtype`` in the place of float32."""

    def of(records: tuple[TensorRecord, ...]) -> tuple[TensorRecord, ...]:
        return tuple(replace(t, dtype=dtype) if t.dtype == "float32" else t for t in records)

    return replace(operator, inputs=of(operator.inputs), outputs=of(operator.outputs))


#: Operators of profiles that are products, and which of their inputs are the factors.
_FACTORS: Mapping[str, tuple[int, int]] = {
    "aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)
}  # fmt: skip


def product(task: Task) -> Operator | None:
    """Return the product that a task of a profile computes; ``None`` where it is none, or its shapes are not known.

    Examples
    --------
    >>> from roller.insight.step.graph import Lane, TaskContext
    >>> context = TaskContext(operator="aten::mm", shapes=((64, 32), (32, 16)), dtypes=("float", "float"))
    >>> gemm = Task(0, "gemm", "kernel", Lane(0, "stream", "7"), 9.0, 0.0, 9.0, context=context)
    >>> product(gemm).outputs[0].shape
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
    records = [_contiguous(s, dtype, n) for n, s in enumerate((a, b, (*a[:-1], b[-1])))]
    name = "aten.mm.default" if len(a) == 2 else "aten.bmm.default"
    return Operator(task.id, name, "forward", tuple(records[:2]), (records[2],))


def _contiguous(shape: tuple[int, ...], dtype: str, storage: int) -> TensorRecord:
    stride = tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))
    return TensorRecord(shape, stride, dtype, storage)


def is_float32(task: Task) -> bool:
    """Return whether a task works on float32, as far as the profile tells; where it does not, it does."""
    known = {dtype_from_profile_name(d) for d in task.context.dtypes if d}
    return not known or "float32" in known


def is_16_bits(task: Task) -> bool:
    """Return whether a task works on 16-bit floats: its operator's dtypes tell, or, without them, its kernel's name.

    Examples
    --------
    >>> from roller.insight.step.graph import Lane
    >>> names = "ampere_fp16_s16816gemm_fp16_128x128", "Cijk_Alik_Bljk_BBS_BH_MT32x32", "ampere_sgemm_128x64_tn"
    >>> [is_16_bits(Task(0, name, "kernel", Lane(0, "stream", "7"), 9.0, 0.0, 9.0)) for name in names]
    [True, True, False]
    """
    known = {dtype_from_profile_name(d) for d in task.context.dtypes if d}.intersection(FLOATS)
    return bool(known & _SHORT) if known else _SHORT_NAMES.search(task.name) is not None


def task_bytes(task: Task) -> float:
    """Return the bytes of the inputs of a task's operator, as far as the profile has their shapes."""
    return _bytes_of(task, task.context.shapes)


def _bytes_of(task: Task, shapes: Sequence[Any]) -> float:
    return math.fsum(
        math.prod(shape) * element_bytes(dtype)
        for shape, dtype in zip(shapes, task.context.dtypes, strict=False)
        if shape and all(isinstance(n, int) for n in shape)
    )


def _rate(task: Task) -> float:
    """Return bytes per microsecond of a kernel that reads its operator's inputs and writes as much as the first."""
    if product(task) is not None or _PRODUCTS.search(f"{task.name} {task.context.operator}"):
        return 0.0
    read = task_bytes(task)
    # what is updated in place is written as well, of others the result is as large as the first input
    moved = read + _bytes_of(task, task.context.shapes[:1])
    return moved / task.duration_us if read >= _TWIN_BYTES and task.duration_us else 0.0
