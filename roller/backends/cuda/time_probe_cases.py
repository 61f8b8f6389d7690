"""Times the cases of a probe on a GPU, running ``n`` and ``2n`` steps of a kernel in turn.

This module needs neither a compiler nor an artifact, only an image, raw buffers and integers. It runs inside the device
process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from roller.backends.cuda.cupy_runtime import image_errors_as_launch_errors, repeatable_launch, time_by_events
from roller.backends.cuda.guarded_buffer import GuardedBuffer
from roller.errors import LaunchError

#: Target time of a case's short run in seconds, far above the launch overhead and the timer's resolution.
TARGET_S = 0.4e-3
#: Number of runs of each length, and time budget of a case in seconds.
WINDOWS, BUDGET_S = 16, 0.25
_MIN_WINDOWS = 6
_MOST_STEPS = 1 << 24
_MOST_LAUNCHES = 512
_WORD = 4


class ProbeBench:
    """Loaded plan whose cases can be run on one device.

    Parameters
    ----------
    inputs
        ``(words, repeated block)`` for each input buffer.

    Raises
    ------
    LaunchError
        If the image does not fit the device, or the device has too little memory.
    """

    def __init__(
        self, cp: Any, stream: Any, image: bytes, inputs: Sequence[tuple[int, np.ndarray]], output_words: int
    ) -> None:
        self._cp, self._stream = cp, stream
        self._image = cp.cuda.Module()
        with image_errors_as_launch_errors("probe"):
            self._image.load(image)
        self._inputs = [GuardedBuffer(cp, words * _WORD) for words, _ in inputs]
        self._output = GuardedBuffer(cp, output_words * _WORD)
        self._parameters = GuardedBuffer(cp, 64 * _WORD)
        for buffer, (_, block) in zip(self._inputs, inputs, strict=True):
            buffer.repeat(block)

    def run(self, case: Mapping[str, Any], check_steps: int) -> dict[str, Any]:
        """Run a case once with few steps for its results, then time it; ``once`` and ``twice`` hold seconds per run."""
        try:
            function = self._image.get_function(case["entry"])
        except RuntimeError as err:
            raise LaunchError(f"no kernel '{case['entry']}' for this target ({err}). Nothing to measure.") from err
        one = _TimedCase(
            self._cp, self._stream, function, case, self._inputs[case["input"]], self._output, self._parameters
        )
        self._output.poison()
        one.time_steps_s(check_steps)
        values = [one.word(w) for w, _ in case["checks"]]
        overrun = next((b.describe_overrun() for b in (self._output, *self._inputs) if b.describe_overrun()), None)
        return {"values": values, "overrun": overrun, **one.time()}


class _TimedCase:
    def __init__(
        self, cp: Any, stream: Any, function: Any, case: Mapping[str, Any], source: GuardedBuffer,
        output: GuardedBuffer,
        parameters: GuardedBuffer,
    ) -> None:  # fmt: skip
        self._cp, self._stream, self._function, self._case = cp, stream, function, case
        self._output, self._p = output, parameters
        self._arguments = tuple(np.uint64(b.ptr) for b in (parameters, source, output))
        self._first = 0
        self._queues: dict[int, Callable[[], None]] = {}

    def word(self, index: int) -> float:
        """Return word ``index`` of the output as a number."""
        raw = self._output.read(index * _WORD, _WORD)
        return float(raw.view(self._case["output_dtype"])[0])

    def time_steps_s(self, steps: int) -> float:
        """Run ``steps`` steps of the kernel; return their time in seconds."""
        case = self._case
        values = [1 if case["launches"] else steps, *case["parameters"]]
        if case["advance"] is not None:
            place, per_step, modulo = case["advance"]
            values[place] = self._first
            self._first = (self._first + steps * per_step) % modulo
        self._p.write(0, np.array(values, np.int32))
        self._cp.cuda.runtime.deviceSynchronize()  # the copy is not ordered by the stream
        start_all = self._queue(steps) if case["launches"] else self._launch
        return time_by_events(self._cp, self._stream, start_all)

    def _launch(self) -> None:
        grid, block = (self._case["grid"], 1, 1), (self._case["block"], 1, 1)
        self._function(grid, block, self._arguments, 0, self._stream)

    def _queue(self, launches: int) -> Callable[[], None]:
        """Return a function that starts many launches, as a graph if possible."""

        def loop() -> None:
            for _ in range(launches):
                self._launch()

        if launches not in self._queues:
            self._queues[launches] = repeatable_launch(self._cp, self._stream, loop)
        return self._queues[launches]

    def time(self) -> dict[str, Any]:
        """Find the number of steps ``n`` that takes about the target time, then time ``n`` and ``2n`` steps in turn."""
        most = _MOST_LAUNCHES if self._case["launches"] else _MOST_STEPS
        steps = min(most, max(1, math.ceil(TARGET_S / self._case["seconds"])))
        for _ in range(4):
            self.time_steps_s(steps)
            seconds = max(self.time_steps_s(steps), 1e-7)
            if 0.5 * TARGET_S <= seconds <= 4 * TARGET_S or (steps == most and seconds < TARGET_S):
                break
            steps = min(most, max(1, math.ceil(steps * min(64.0, TARGET_S / seconds))))
        windows = max(_MIN_WINDOWS, min(WINDOWS, int(BUDGET_S / (3 * seconds))))
        counted = self._case["cycles_word"]
        times: tuple[list[float], list[float]] = ([], [])
        cycles: tuple[list[float], list[float]] = ([], [])
        for _ in range(windows):
            for n in (0, 1):
                times[n].append(self.time_steps_s(steps << n))
                if counted is not None:
                    cycles[n].append(self.word(counted))
        out: dict[str, Any] = {"steps": steps, "once": times[0], "twice": times[1]}
        return out if counted is None else {**out, "cycles": list(cycles)}
