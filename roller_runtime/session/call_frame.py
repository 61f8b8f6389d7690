"""Memory of one call: the arena and the caller's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roller_runtime.plan.execution_plan import ARENA, INPUT
from roller_runtime.session.cpu_kernel_loading import allocate_aligned
from roller_runtime.session.inputs_given_by_address import AddressedInputs
from roller_runtime.session.interpreter import interpret_steps
from roller_runtime.session.plan_binding import Bound, Operand


class Frame:
    """Reusable memory for a call; one thread at a time may use it.

    Parameters
    ----------
    steps
        The bound steps, which all frames share.
    arena
        Memory to use as the arena; allocated if ``None``.
    """

    def __init__(self, steps: Sequence[Bound], arena_bytes: int, arena: np.ndarray | None = None) -> None:
        self.steps = steps
        self.arena = allocate_aligned(arena_bytes) if arena is None else arena
        self.inputs: Sequence[np.ndarray] | AddressedInputs = ()
        self.outputs: list[Any] = []
        #: Views of the arena by the identity of their operand; the steps keep operands alive.
        self._views: dict[int, np.ndarray] = {}

    def memory(self, operand: Operand) -> np.ndarray:
        """Return the array of an operand in this call."""
        if operand.held is not None:
            return operand.held
        place = operand.place
        assert place is not None
        if place.space == ARENA:
            view = self._views.get(id(operand))
            if view is None:
                view = self._views[id(operand)] = _operand_view(self.arena, place.offset_bytes, operand)
            return view
        arrays = self.inputs if place.space == INPUT else self.outputs
        return _operand_view(arrays[place.index].reshape(-1).view(np.uint8), place.offset_bytes, operand)

    def keep(self, operand: Operand, array: np.ndarray) -> None:
        """Set the array of an output that has no planned memory."""
        assert operand.place is not None
        self.outputs[operand.place.index] = array

    def run(
        self,
        inputs: Sequence[np.ndarray] | AddressedInputs,
        outputs: list[Any],
        seconds: dict[int, float] | None = None,
    ) -> None:
        """Run all steps; ``seconds`` receives each step's time, keyed by the ``id`` of the bound step."""
        self.inputs, self.outputs = inputs, outputs
        try:
            self.execute(seconds)
        finally:  # do not keep the caller's arrays alive
            self.inputs, self.outputs = (), []

    def execute(self, seconds: dict[int, float] | None) -> None:
        """Run all steps on the current arrays."""
        interpret_steps(self.steps, self.memory, self.keep, seconds)


def _operand_view(flat: np.ndarray, offset_bytes: int, operand: Operand) -> np.ndarray:
    return flat[offset_bytes : offset_bytes + operand.nbytes].view(operand.dtype).reshape(operand.shape)
