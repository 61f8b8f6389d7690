"""Memory of a trace in the simulated allocator: peaks, the tensors at the peak, and out-of-memory failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from roller.hardware import DeviceSpec
from roller.insight.memory.allocator_blocks_and_pools import MemoryStats, OutOfDeviceMemoryError
from roller.insight.memory.caching_allocator import CachingAllocator
from roller.insight.memory.convolution_workspaces import (
    NARROW_FLOATS,
    events_with_convolution_workspaces,
    is_convolution_workspace,
)
from roller.insight.memory.settings import AllocatorSettings
from roller.insight.trace.torch_release import TorchRelease
from roller.insight.trace.trace import AllocEvent, FreeEvent, Phase, Storage, Trace
from roller.targets import LANGUAGES

#: Operators that call cuBLAS, which allocates a workspace per handle through the allocator; each thread has one handle.
_CUBLAS = frozenset({"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "_addmm_activation"})

#: Architectures whose cuBLAS handles get larger workspaces (``getChosenWorkspaceSize`` of ``CublasHandlePool.cpp``).
_LARGE_WORKSPACES, _LARGE_WORKSPACE_BYTES = ("sm_90", "sm_100"), 33_554_432

#: Sources of a value that was measured in this very process.
_OF_THIS = frozenset({"detected", "override"})

#: Relative error of the step's reserved bytes: the error for published figures without a context in
#: benchmarks/results/insight_memory_published.md. That page also counts the figures that lie within the interval when
#: their own model is left out of the estimate.
MODEL_ERROR = 0.03


@dataclass(frozen=True)
class Library:
    """Memory that libraries and the driver use in addition to tensors.

    Parameters
    ----------
    workspace_bytes
        Workspace of a cuBLAS handle: 8,519,680 bytes (``cublasCommonArgs`` of PyTorch), 33,554,432 on ``sm_90`` and
        ``sm_100``, unless ``CUBLAS_WORKSPACE_CONFIG`` says otherwise.
    context_bytes
        Bytes of the process outside the allocator: its context and the code of libraries.
    context_least_bytes, context_most_bytes
        Smallest and largest published ``context_bytes``, which depend on the driver, the PyTorch build, and how kernels
        are loaded.
    converted_dtypes
        16-bit float dtypes whose tensors cuDNN converts to channels innermost around a convolution: the dtypes that
        matrix units support.
    multiplies_in_planes
        Whether cuDNN accepts channels-first tensors unconverted if every window is a point (from version 9 on).
    """

    workspace_bytes: int = 8_519_680
    context_bytes: int = 0
    context_least_bytes: int = 0
    context_most_bytes: int = 0
    converted_dtypes: frozenset[str] = frozenset()
    multiplies_in_planes: bool = True

    @property
    def context_error_bytes(self) -> int:
        """Largest possible error of ``context_bytes``."""
        return max(self.context_bytes - self.context_least_bytes, self.context_most_bytes - self.context_bytes, 0)

    @classmethod
    def of(cls, spec: DeviceSpec, options: Mapping[str, object] | None = None) -> Library:
        """Return the memory that libraries use on a device.

        Parameters
        ----------
        spec
            The device; its ``process_bytes`` and related fields are published values.
        options
            Options of a trace: the libraries that it loads, and its PyTorch release. By default, the newest release,
            without cuDNN.
        """
        options = options or {}
        release = TorchRelease.parse(str(options.get("torch_release") or ""))
        libraries = options.get("libraries") or ()
        eager = None if release.loads_lazily else spec.process_eager_bytes
        context = spec.process_bytes or 0 if eager is None else int(release.eager_share * eager)
        convolves, cudnn = spec.process_convolution_bytes or 0, "cudnn" in libraries  # type: ignore[operator]
        highest = context + (0 if release.loads_lazily else convolves)
        context += convolves if cudnn else 0
        least = context // 2 if spec.process_least_bytes is None else min(spec.process_least_bytes, context)
        most = context * 3 // 2 if spec.process_most_bytes is None else max(spec.process_most_bytes, context, highest)
        if spec.sources.get("process_bytes", "override") in _OF_THIS:  # of this process, with all it loads
            least = most = context = spec.process_bytes or 0
        arch = spec.target.get("arch", "")
        own = _LARGE_WORKSPACE_BYTES if arch in _LARGE_WORKSPACES else cls.workspace_bytes
        language = LANGUAGES.get(spec.target.get("language", ""))
        has_cudnn = language is not None and language.innermost_channels
        converted = NARROW_FLOATS & {f.operand for f in spec.fragments} if has_cudnn else frozenset()
        return cls(own if release.allocates_workspaces else 0, context, least, most, converted, release.has_cudnn_9)


@dataclass(frozen=True)
class MemoryHolder:
    """Bytes held at the peak by tensors of one kind, module and line."""

    kind: str
    module: str
    source: tuple[str, int] | None
    requested_bytes: int
    tensors: int


@dataclass(frozen=True)
class MemoryAtPeak:
    """Memory when the total is at its peak; ``total_bytes`` is the exact sum of all parts."""

    #: Bytes that tensors requested, by kind of storage, largest first.
    requested_bytes: Mapping[str, int]
    #: Bytes of blocks in excess of the requests that they serve.
    rounding_bytes: int = 0
    #: Bytes reserved from the driver in blocks that serve no request.
    cached_bytes: int = 0
    #: Bytes of the process outside the allocator.
    context_bytes: int = 0
    #: Bytes that round the total up to whole pages of the driver.
    page_rounding_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Sum of all parts."""
        rest = self.rounding_bytes + self.cached_bytes + self.context_bytes + self.page_rounding_bytes
        return sum(self.requested_bytes.values()) + rest


@dataclass(frozen=True)
class Memory:
    """The memory of a traced run on a device.

    Parameters
    ----------
    peak
        Peak bytes requested, allocated and reserved; the peaks may be at different times.
    total_bytes
        Memory as shown by the vendor's monitor: peak reserved bytes, the context and libraries, in pages of 2 MiB.
    total_error_bytes
        Error of ``total_bytes``: the model's error plus the environment's error.
    peak_operator
        Index of the operator when the total is at its peak: among all moments with the most reserved bytes, the moment
        with the most allocated bytes.
    holders
        Holders of memory at the peak, largest first.
    timeline
        Bytes allocated and reserved after each operator; empty unless requested.
    segments
        Number of segments requested from the driver.
    retries
        Number of times that all cached memory was released to serve a request.
    oom
        The failed request, as PyTorch reports it; all other fields then describe the run up to the failure. ``None``:
        the run fits.
    oom_operator
        Index of the operator whose request failed; ``None``: the run fits.
    at_peak
        Bytes at the moment of ``peak_operator``; ``None`` if they are unknown.
    context_bytes
        Bytes of the process outside the allocator.
    held
        Maps the number of each storage that is allocated at the peak to its allocation.
    model_error_bytes
        The model's part of ``total_error_bytes``: the error of the step's reserved bytes.
    context_least_bytes, context_most_bytes
        Published range for such a context; its distance from ``context_bytes`` is the environment's error.
    """

    peak: MemoryStats
    total_bytes: int
    total_error_bytes: int
    peak_operator: int
    holders: tuple[MemoryHolder, ...]
    timeline: Sequence[tuple[int, int]] = field(repr=False, default=())
    segments: int = 0
    retries: int = 0
    oom: OutOfDeviceMemoryError | None = None
    oom_operator: int | None = None
    at_peak: MemoryStats | None = None
    context_bytes: int = 0
    held: Mapping[int, AllocEvent] = field(repr=False, default_factory=dict)
    model_error_bytes: int = 0
    context_least_bytes: int = 0
    context_most_bytes: int = 0

    @property
    def environment_error_bytes(self) -> int:
        """The environment's part of ``total_error_bytes``: driver, libraries, and how kernels are loaded."""
        return self.total_error_bytes - self.model_error_bytes

    @property
    def fits(self) -> bool:
        """Whether every request was served."""
        return self.oom is None

    def by_kind(self) -> Mapping[str, int]:
        """Return the bytes requested at the peak by kind of storage, largest first."""
        total: dict[str, int] = defaultdict(int)
        for holder in self.holders:
            total[holder.kind] += holder.requested_bytes
        return dict(sorted(total.items(), key=lambda x: -x[1]))

    def parts_at_peak(self) -> MemoryAtPeak:
        """Return the parts of ``total_bytes`` at its peak."""
        now, kinds = self.at_peak or self.peak, self.by_kind()
        rounding, cached = now.allocated_bytes - now.requested_bytes, now.reserved_bytes - now.allocated_bytes
        pages = self.total_bytes - now.reserved_bytes - self.context_bytes
        return MemoryAtPeak(kinds, rounding, cached, self.context_bytes, pages)


_PAGE_BYTES = 2 << 20


def simulate_memory(
    trace: Trace,
    capacity_bytes: int | None = None,
    *,
    settings: AllocatorSettings | None = None,
    library: Library | None = None,
    timeline: bool = False,
) -> Memory:
    """Return the memory of a trace on a device.

    Parameters
    ----------
    trace
        A traced run.
    capacity_bytes
        Memory of the device in bytes; the process may reserve all of it except the context in ``library``. ``None``: no
        limit.
    settings
        Settings of the allocator; by default, PyTorch's own.
    library
        Memory that libraries and the driver use.
    timeline
        Whether to return the bytes after each operator.
    """
    library = library or Library()
    room = None if capacity_bytes is None else max(0, capacity_bytes - library.context_bytes)
    allocator = CachingAllocator(room, settings)
    run = _AllocatorRun(allocator, events_with_workspaces(trace, library), timeline=timeline)
    run.apply_events()
    total = -(-(allocator.peak.reserved_bytes + library.context_bytes) // _PAGE_BYTES) * _PAGE_BYTES
    held = run.allocations_at_peak()
    error = int(MODEL_ERROR * allocator.peak.reserved_bytes)
    return Memory(
        allocator.peak, total, error + library.context_error_bytes, run.peak_operator,
        group_allocations_by_holder(trace, held),
        run.timeline,
        allocator.segment_requests, allocator.retries, run.oom, run.oom_operator, run.at_peak, library.context_bytes,
        held, error, library.context_least_bytes, library.context_most_bytes,
    )  # fmt: skip


def events_with_workspaces(trace: Trace, library: Library) -> list[AllocEvent | FreeEvent]:
    """Return a trace's events with the workspaces of convolutions and one cuBLAS workspace per thread."""
    # Autograd runs the backward pass in a thread of its own, so a training step has two cuBLAS workspaces.
    events = _events_with_cublas_workspaces(trace, library)
    if not library.converted_dtypes:
        return events
    planes = library.multiplies_in_planes
    return list(
        events_with_convolution_workspaces(
            trace.operators, events, library.converted_dtypes, multiplies_in_planes=planes
        )
    )


def _events_with_cublas_workspaces(trace: Trace, library: Library) -> list[AllocEvent | FreeEvent]:
    calls: dict[bool, int] = {}
    for operator in trace.operators:
        if _operator_calls_cublas(operator.name):
            calls.setdefault(_is_backward(operator.phase), operator.index)
    if not calls or not library.workspace_bytes:
        return list(trace.events)
    waiting = sorted((index, -1 - n) for n, index in enumerate(calls.values()))
    found: list[AllocEvent | FreeEvent] = []
    for event in trace.events:
        while waiting and event.operator >= waiting[0][0]:
            index, number = waiting.pop(0)
            found.append(AllocEvent(number, library.workspace_bytes, index))
        found.append(event)
    return [*found, *(AllocEvent(number, library.workspace_bytes, index) for index, number in waiting)]


@cache
def _operator_calls_cublas(name: str) -> bool:
    return name.split(".")[1] in _CUBLAS if "." in name else False


def _is_backward(phase: Phase) -> bool:
    return phase == "backward"


class _AllocatorRun:
    """Runs a trace's events through an allocator, up to the first failure."""

    def __init__(
        self, allocator: CachingAllocator, events: Sequence[AllocEvent | FreeEvent], *, timeline: bool
    ) -> None:
        self.allocator, self.events, self._keeps = allocator, events, timeline
        self.at_peak, self.peak_event, self.peak_operator = allocator.stats, -1, -1
        self.timeline: list[tuple[int, int]] = []
        self.oom: OutOfDeviceMemoryError | None = None
        self.oom_operator: int | None = None

    def apply_events(self) -> None:
        """Apply all events, or stop at the first event that fails."""
        allocator = self.allocator
        for position, event in enumerate(self.events):
            if self._keeps:
                self._append_bytes_until_operator(event.operator)
            if isinstance(event, FreeEvent):
                allocator.free(event.storage)
                continue
            try:
                allocator.malloc(event.storage, event.size_bytes, event.stream)
            except OutOfDeviceMemoryError as error:
                if is_convolution_workspace(event.storage):  # cuDNN falls back to an algorithm that needs less
                    continue
                self.oom, self.oom_operator = error, event.operator
                break
            peak = self.at_peak
            if allocator.reserved_bytes > peak.reserved_bytes or (
                allocator.reserved_bytes == peak.reserved_bytes and allocator.allocated_bytes > peak.allocated_bytes
            ):
                self.at_peak, self.peak_event, self.peak_operator = allocator.stats, position, event.operator
        if self._keeps and self.events:
            self._append_bytes_until_operator(self.events[-1].operator + 1)

    def _append_bytes_until_operator(self, operator: int) -> None:
        """Append to the timeline the bytes after each operator before this one."""
        while len(self.timeline) < operator:
            self.timeline.append((self.allocator.allocated_bytes, self.allocator.reserved_bytes))

    def allocations_at_peak(self) -> dict[int, AllocEvent]:
        """Return the allocations that are live at the peak."""
        held: dict[int, AllocEvent] = {}
        for event in self.events[: self.peak_event + 1]:
            if isinstance(event, AllocEvent):
                held[event.storage] = event
            else:
                held.pop(event.storage, None)
        return held


def group_allocations_by_holder(trace: Trace, held: Mapping[int, AllocEvent]) -> tuple[MemoryHolder, ...]:
    """Return the holders of memory, grouped by kind and by the module and line of the allocating operator."""
    rows: dict[tuple[str, str, tuple[str, int] | None], list[int]] = defaultdict(lambda: [0, 0])
    for number, event in held.items():
        storage = trace.storages.get(number, Storage("workspace" if number < 0 else "unknown"))
        maker = trace.operators[event.operator] if 0 <= event.operator < len(trace.operators) else None
        module = storage.name.rpartition(".")[0] if storage.name else maker.module if maker else ""
        row = rows[storage.kind, module, None if storage.name or maker is None else maker.source]
        row[0] += event.size_bytes
        row[1] += 1
    found = [MemoryHolder(*key, requested_bytes=size, tensors=count) for key, (size, count) in rows.items()]
    return tuple(sorted(found, key=lambda x: (-x.requested_bytes, x.kind, x.module)))
