"""Turns of processes that train: one runs a block of iterations while the other waits."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from roller.errors import ModelError
from roller.insight.trace.step_clock import is_undisturbed
from roller.runtime.channel import receive, send
from roller.runtime.clock import Clock, system_clock
from roller.runtime.windows import spell
from roller.suite.mean_interval import mean_interval
from roller.suite.sampling import Sample

#: Seconds between two looks at whether the other process is still there.
_LOOK_S = 0.2
#: Seconds in which a message that has begun is whole.
_WHOLE_S = 60.0


class Block(NamedTuple):
    """Iterations that followed each other.

    Parameters
    ----------
    iteration_s
        Seconds of one.
    is_quiet
        Whether no other work took the processors.
    """

    iteration_s: float
    is_quiet: bool


class TurnGiver:
    """The end of the process that says whose turn it is; pipes with names in a folder lead to the other.

    Parameters
    ----------
    folder
        Empty, of this process alone.
    lives
        Whether the other process is still there.
    """

    def __init__(self, folder: Path, lives: Callable[[], bool]) -> None:
        self._lives = lives
        for name in ("turn", "done"):
            os.mkfifo(folder / name, 0o600)
        # Both are open for both directions here, so that no end waits for the other one to open its own.
        self._turn, self._done = (os.open(folder / name, os.O_RDWR) for name in ("turn", "done"))

    def wait(self) -> None:
        """Return when the other process is ready.

        Raises
        ------
        ModelError
            It ended before.
        """
        self._answer()

    def run(self, calls: int) -> Block:
        """Return a block of calls of the step."""
        send(self._turn, {"calls": calls})
        answer = self._answer()
        return Block(float(answer["iteration_s"]), bool(answer["is_quiet"]))

    def end(self) -> None:
        """Let the other process go on with what comes after its turns."""
        send(self._turn, {"calls": 0})

    def close(self) -> None:
        """Close the pipes."""
        os.close(self._turn)
        os.close(self._done)

    def _answer(self) -> dict[str, Any]:
        while not select.select([self._done], [], [], _LOOK_S)[0]:
            if not self._lives():
                raise ModelError("suite: expected a process that trains, got its end. Train it alone.")
        return receive(self._done, _WHOLE_S)[0]


def take_turns(
    step: Callable[[], object], folder: Path, *, steps_per_call: int = 1, clock: Clock | None = None
) -> Sample:
    """Run blocks of a step as the other end asks, and return them as a sample.

    Parameters
    ----------
    step
        Runs ``steps_per_call`` iterations.
    folder
        That of the :class:`TurnGiver`.
    clock
        That of this machine by default.
    """
    chosen = clock or system_clock()
    turn, done = (os.open(folder / name, flag) for name, flag in (("turn", os.O_RDONLY), ("done", os.O_WRONLY)))
    blocks: list[Block] = []
    try:
        send(done, {})
        while calls := int(receive(turn)[0]["calls"]):
            blocks.append(_block(step, calls, steps_per_call, chosen))
            send(done, blocks[-1]._asdict())
    finally:
        os.close(turn)
        os.close(done)
        if clock is None:
            chosen.release()
    kept = tuple(block.iteration_s for block in blocks if block.is_quiet)
    return Sample(0, kept, len(blocks) - len(kept), mean_interval(kept) if len(kept) > 1 else None, None)


def _block(step: Callable[[], object], calls: int, steps_per_call: int, clock: Clock) -> Block:
    def run() -> None:
        for _ in range(calls):
            step()

    clock.attend()
    one = spell(run, clock)
    return Block(one.wall_s / calls / steps_per_call, is_undisturbed(one, clock))
