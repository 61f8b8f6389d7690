"""Device side of profiling on a GPU: allocates inputs, checks one run, then times more.

This module runs inside the device process (:mod:`roller.runtime.worker`). An exception other than a
:class:`~roller.errors.RollerError` means that the device's state is unknown, and ends the process.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.cuda.cache_flush import PTX, CacheFlush
from roller.backends.cuda.cupy_runtime import (
    import_cupy,
    is_hip,
    properties,
    repeatable_launch,
    select_device,
    time_by_events,
)
from roller.backends.cuda.guarded_buffer import GuardedBuffer
from roller.backends.cuda.loaded_gpu_module import LoadedImage
from roller.backends.cuda.time_probe_cases import ProbeBench
from roller.backends.periodic_inputs import periodic_inputs
from roller.errors import LaunchError
from roller.expr import TensorExpr
from roller_runtime.core.dtypes import storage_dtype

#: Roles of the arguments whose memory belongs to the kernel.
_OWN = ("workspace", "panel")
#: Run time in seconds below which runs are timed as graphs of many launches, which hides the launch overhead.
GRAPH_BELOW_S = 100e-6
#: Target time of a graph in seconds, and the maximum number of launches in it.
_GRAPH_S, _MOST_LAUNCHES = 400e-6, 512
#: Maximum number of sets of buffers that short runs rotate over.
_MOST_SETS = 64
_MIN_SAMPLES, _MAX_SAMPLES = 7, 60
#: Time of a first run, in seconds, below which a candidate is never dropped: it is mostly launch overhead.
_DROP_ABOVE_S = 50e-6
#: Duration in seconds of the work before the first timing; an idle GPU runs at a fraction of its clock.
_WAKE_S = 0.3
#: Duration in seconds of the work after a pause in which only the host was busy.
_STAY_AWAKE_S = 0.05


class OutOfBoundsError(RuntimeError):
    """A kernel wrote outside its buffers."""


class CudaDevice:
    """NVIDIA GPU opened for profiling; raises :class:`LaunchError` if CuPy or the device is missing."""

    def __init__(self, index: int, options: Mapping[str, str]) -> None:
        del options
        self._cp = self._runtime()
        select_device(self._cp, index)
        self._said = properties(self._cp, index)
        self._stream = self._cp.cuda.Stream(non_blocking=True)
        self._flush: CacheFlush | None = None
        self._sets: list[tuple[list[GuardedBuffer], list[GuardedBuffer]]] = []
        self._expression: TensorExpr | None = None
        self._points: Sequence[np.ndarray] = ()
        self._module: LoadedImage | None = None
        self._scratch: list[GuardedBuffer] = []
        self._bench: ProbeBench | None = None

    def _runtime(self) -> Any:
        return import_cupy()

    def properties(self) -> dict[str, Any]:
        """Return the properties of the device; see ``DeviceProperties``."""
        return self._said

    def prepare(self, expression: TensorExpr, seed: int, points: Sequence[np.ndarray]) -> None:
        """Allocate inputs and outputs and fill the inputs; free those of the previous expression."""
        self._module, self._scratch, self._sets = None, [], []
        self._cp.get_default_memory_pool().free_all_blocks()
        self._expression, self._points = expression, points
        needed = sum(t.nbytes for t in (*expression.inputs, *expression.output_tensors))
        # Short runs rotate over enough copies to exceed the cache; larger data exceed it anyway.
        sets = max(1, min(_MOST_SETS, math.ceil(2 * self._said["cache_bytes"] / max(needed, 1))))
        try:
            for _ in range(sets):
                inputs = [GuardedBuffer(self._cp, t.nbytes) for t in expression.inputs]
                outputs = [GuardedBuffer(self._cp, t.nbytes) for t in expression.output_tensors]
                self._sets.append((inputs, outputs))
        except LaunchError:
            self._sets = []
            raise
        for buffer, x in zip(self._sets[0][0], periodic_inputs(expression, seed), strict=True):
            buffer.fill(x)
        for inputs, _ in self._sets[1:]:
            for buffer, source in zip(inputs, self._sets[0][0], strict=True):
                buffer.move(0, source.ptr, buffer.nbytes)

    def check(self, position: int, artifact: KernelArtifact) -> list[np.ndarray]:
        """Run a candidate once on poisoned outputs; return their elements at the points passed to :meth:`prepare`."""
        del position
        assert self._expression is not None
        self._module, self._scratch = LoadedImage(self._cp, artifact), []
        for a in artifact.arguments:
            if a.role in _OWN:
                self._scratch.append(GuardedBuffer(self._cp, math.prod(a.shape) * storage_dtype(a.dtype).itemsize))
        inputs, outputs = self._sets[0]
        for buffer in (*outputs, *self._scratch):
            buffer.poison()
        self._cp.cuda.runtime.deviceSynchronize()
        self._module.prepare(self._pointers(0), self._stream)
        self._launch(0)
        self._stream.synchronize()
        named = zip((*artifact.inputs, *artifact.outputs), (*inputs, *outputs), strict=True)
        work = zip((a for a in artifact.arguments if a.role in _OWN), self._scratch, strict=True)
        for argument, buffer in (*named, *work):
            overrun = buffer.describe_overrun()
            if overrun is not None:
                raise OutOfBoundsError(f"wrote {overrun} of {argument.role} '{argument.name}'")
        tensors = self._expression.output_tensors
        return [
            b.elements(p, t.shape, storage_dtype(t.dtype))
            for b, p, t in zip(outputs, self._points, tensors, strict=True)
        ]

    def time(self, candidate_id: str, budget_s: float, drop_s: float | None) -> dict[str, Any]:
        """Time the candidate that was checked last."""
        # A single warm run above drop_s ends the measurement.
        del candidate_id
        self._keep_device_busy()
        self._cold(lambda: self._launch(0))
        first = min(self._cold(lambda: self._launch(0)) for _ in range(2))
        if drop_s is not None and first > max(drop_s, _DROP_ABOVE_S):
            return {"median_s": first, "samples": 1, "complete": False, "method": self._event_timing_method}
        if first < GRAPH_BELOW_S:
            samples, method = self._graphs(first, budget_s), "loop" if is_hip(self._cp) else "graph"
        else:
            count = max(_MIN_SAMPLES, min(_MAX_SAMPLES, int(budget_s / first)))
            samples, method = [self._cold(lambda: self._launch(0)) for _ in range(count)], self._event_timing_method
        low, _, high = statistics.quantiles(samples, n=4)
        return {
            "median_s": statistics.median(samples),
            "spread_s": high - low,
            "samples": len(samples),
            "complete": True,
            "method": method,
        }

    @property
    def _event_timing_method(self) -> str:
        """Name of the timing method for single runs."""
        return "events" if self._flush is None or self._flush.reads else "events, the cache overwritten before"

    def usable(self) -> bool:
        """Return whether the device still responds; after some faults, every further call fails."""
        try:
            self._cp.cuda.runtime.deviceSynchronize()
        except RuntimeError:  # CUDARuntimeError
            return False
        return True

    def probe_load(self, image: bytes, inputs: Sequence[tuple[int, np.ndarray]], output_words: int) -> None:
        """Load the kernels and buffers for a probe's plan; free the previous ones."""
        self._module, self._scratch, self._sets, self._bench = None, [], [], None
        self._cp.get_default_memory_pool().free_all_blocks()
        self._keep_device_busy(_STAY_AWAKE_S)
        self._bench = ProbeBench(self._cp, self._stream, image, inputs, output_words)

    def probe_run(self, case: Mapping[str, Any], check_steps: int) -> dict[str, Any]:
        """Check and time one case of the loaded plan; see :meth:`ProbeBench.run`."""
        assert self._bench is not None
        return self._bench.run(case, check_steps)

    def _launch(self, number: int) -> None:
        """Launch all kernels on buffer set ``number`` (modulo the number of sets)."""
        assert self._module is not None
        self._module.launch(self._pointers(number), self._stream)

    def _pointers(self, number: int) -> dict[str, int]:
        """Return the addresses of all arguments with buffer set ``number``; all sets share workspaces and panels."""
        assert self._module is not None
        inputs, outputs = self._sets[number % len(self._sets)]
        artifact = self._module.artifact
        work = [a.name for a in artifact.arguments if a.role in _OWN]
        names = [*(a.name for a in (*artifact.inputs, *artifact.outputs)), *work]
        return {n: b.ptr for n, b in zip(names, (*inputs, *outputs, *self._scratch), strict=True)}

    def _cold(self, run: Callable[[], None]) -> float:
        """Return the time of one run in seconds, measured with events after flushing the last-level cache."""
        if self._flush is None:
            units = self._said["units"]
            self._flush = CacheFlush(self._cp, self._stream, self._said["cache_bytes"], units, self._flush_image())
        self._flush.start()
        return time_by_events(self._cp, self._stream, run)

    def _flush_image(self) -> bytes | None:
        """Return the image of the kernel that reads the flush buffer; ``None`` if there is none for this device."""
        return PTX

    def _graphs(self, first_s: float, budget_s: float) -> list[float]:
        """Time graphs of many launches that rotate over the buffer sets; return each graph's time per launch (s)."""
        # CuPy captures no graphs on HIP: launches follow each other there, and their overhead shows below some 5 us.
        wanted = math.ceil(_GRAPH_S / max(first_s, 1e-6))
        sets = len(self._sets)
        launches = min(_MOST_LAUNCHES, math.ceil(max(wanted, sets) / sets) * sets)

        def replay() -> None:
            for n in range(launches):
                self._launch(n)

        go = repeatable_launch(self._cp, self._stream, replay)
        once = min(time_by_events(self._cp, self._stream, go) for _ in range(3))
        count = max(_MIN_SAMPLES, min(_MAX_SAMPLES, int(budget_s / max(once, 1e-6))))
        return [time_by_events(self._cp, self._stream, go) / launches for _ in range(count)]

    def _keep_device_busy(self, again_s: float = 0.0) -> None:
        """Keep the device busy to raise its clock: longer before the first timing, then for ``again_s`` seconds."""
        seconds = _WAKE_S if self._flush is None else again_s
        if seconds:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                self._cold(lambda: None)
