"""Alternation of training processes: one runs a block of iterations while the other waits."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from roller.backends.message_channel import receive_message, send_message
from roller.errors import ModelError
from roller.insight.trace.time_steps_until_stable import is_undisturbed
from roller_runtime.timing.clock import Clock, system_or_trusting_clock
from roller_runtime.timing.undisturbed_timing_windows import time_calls_together

#: Time between checks that the other process is alive, in seconds.
_POLL_S = 0.2
#: Timeout of a message after its first byte, in seconds.
_MESSAGE_TIMEOUT_S = 60.0
#: Timeout of a process start, and of a block, in seconds.
_BLOCK_TIMEOUT_S = 600.0


class Block(NamedTuple):
    """Time per iteration, in seconds, of consecutive iterations, and whether they ran undisturbed by other work."""

    iteration_s: float
    is_quiet: bool


class TurnCoordinator:
    """Coordinator's end of two named pipes in an empty ``folder``, through which it asks a worker to run blocks."""

    def __init__(self, folder: Path, is_alive: Callable[[], bool]) -> None:
        self._is_alive = is_alive
        for name in ("turn", "done"):
            os.mkfifo(folder / name, 0o600)
        # opened for reading and writing, so that neither process blocks until the other opens its end
        self._turn, self._done = (os.open(folder / name, os.O_RDWR) for name in ("turn", "done"))

    def wait(self) -> None:
        """Wait until the other process is ready."""
        self._answer()

    def run(self, calls: int) -> Block:
        """Let the other process call the step ``calls`` times; return the measured block."""
        send_message(self._turn, {"calls": calls})
        answer = self._answer()
        return Block(float(answer["iteration_s"]), bool(answer["is_quiet"]))

    def end(self) -> None:
        """Let the other process continue after its last block."""
        send_message(self._turn, {"calls": 0})

    def close(self) -> None:
        """Close the pipes."""
        os.close(self._turn)
        os.close(self._done)

    def _answer(self) -> dict[str, Any]:
        end_s = time.monotonic() + _BLOCK_TIMEOUT_S
        while not select.select([self._done], [], [], _POLL_S)[0]:
            if not self._is_alive():
                raise ModelError("suite: expected a process that trains, got its end. Train it alone.")
            if time.monotonic() > end_s:
                raise ModelError(
                    f"suite: expected an answer within {_BLOCK_TIMEOUT_S:g} s, got none: the process is stopped, or "
                    f"its step does not end. Train it alone."
                )
        return receive_message(self._done, _MESSAGE_TIMEOUT_S)[0]


def run_requested_blocks(step: Callable[[], object], folder: Path, *, steps_per_call: int = 1) -> None:
    """Run blocks of a step at the coordinator's request."""
    clock = system_or_trusting_clock()
    turn, done = (os.open(folder / name, flag) for name, flag in (("turn", os.O_RDONLY), ("done", os.O_WRONLY)))
    try:
        send_message(done, {})
        while calls := int(receive_message(turn)[0]["calls"]):
            send_message(done, _time_block(step, calls, steps_per_call, clock)._asdict())
    finally:
        os.close(turn)
        os.close(done)
        clock.release()


def _time_block(step: Callable[[], object], calls: int, steps_per_call: int, clock: Clock) -> Block:
    def run() -> None:
        for _ in range(calls):
            step()

    clock.attend()
    one = time_calls_together(run, clock)
    return Block(one.wall_s / calls / steps_per_call, is_undisturbed(one, clock))
