"""A built packed kernel in a device's memory, through CuPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from roller.backends.cuda.module import LANGUAGES, allow_scratchpad
from roller.errors import LaunchError
from roller.packed import PackedKernel


class PackedModule:
    """The stages of one packed kernel, loaded on the current device.

    Parameters
    ----------
    cp
        The CuPy module.
    packed
        Built.

    Raises
    ------
    LaunchError
        Where it is not built, or its image does not fit the device.
    """

    def __init__(self, cp: Any, packed: PackedKernel) -> None:
        name = packed.stages[0].entry
        if packed.language not in LANGUAGES or packed.binary is None:
            raise LaunchError(
                f"{name}: expected a built packed kernel of {LANGUAGES}. Build it with its toolchain first."
            )
        self.packed, self._image = packed, cp.cuda.Module()
        blocks = int(packed.build.get("blocks_per_unit", 0))
        try:
            self._image.load(packed.binary)
            self._functions = [self._image.get_function(s.entry) for s in packed.stages]
            for stage, function in zip(packed.stages, self._functions, strict=True):
                allow_scratchpad(cp, function, stage.dynamic_shared_bytes, stage.dynamic_shared_bytes, blocks)
        except RuntimeError as err:  # CUDADriverError
            raise LaunchError(
                f"{name}: the device refuses the image for {dict(packed.target)} ({err}). "
                "Build for the device's own architecture."
            ) from err

    def bind(self, places: Mapping[str, Sequence[Mapping[str, tuple[int, int]]]]) -> list[Callable[[Any], None]]:
        """Return what starts each stage on a stream; addresses and bytes by argument, per run, by key of its kernel."""
        addresses = {key: [{n: a for n, (a, _) in run.items()} for run in runs] for key, runs in places.items()}
        counts = {key: len(runs) for key, runs in places.items()}
        return [self._launch(n, addresses) for n, s in enumerate(self.packed.stages) if s.runs(counts)]

    def _launch(self, number: int, addresses: Mapping[str, Sequence[Mapping[str, int]]]) -> Callable[[Any], None]:
        stage, function = self.packed.stages[number], self._functions[number]
        sets = [addresses.get(m.kernel, ()) for m in stage.members]
        # CuPy passes an array of one element by value, whatever that element is.
        table = np.frombuffer(stage.table(sets), np.dtype((np.void, stage.table_bytes)))
        grid, block = (stage.grid([len(s) for s in sets]), 1, 1), (stage.threads, 1, 1)
        return lambda stream: function(grid, block, (table,), stage.dynamic_shared_bytes, stream)
