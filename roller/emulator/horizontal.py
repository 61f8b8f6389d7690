"""Runs the launches of a packed kernel on memory of the caller, on the CPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from roller.core.processor import usable_processors
from roller.emulator import library
from roller.emulator.emulate import ORDERS, architecture_of
from roller.emulator.translate import translate
from roller.errors import EmulationError
from roller.horizontal import HorizontalKernel
from roller.targets import expect_language

_MESSAGE_BYTES = 2048
#: Address and bytes by name of the argument.
Places: TypeAlias = Mapping[str, tuple[int, int]]


class EmulatedPack:
    """A packed kernel built for the CPU.

    Parameters
    ----------
    packed
        Language ``"cuda"``; it need not be built.
    check
        Report out-of-bounds and misaligned accesses.
    cache_dir
        Folder that keeps what g++ built; the user's cache folder where ``None``.

    Raises
    ------
    EmulationError
        Where it is not CUDA, or its source is not what its stages say.
    """

    def __init__(
        self, packed: HorizontalKernel, *, check: bool = True, cache_dir: str | os.PathLike[str] | None = None
    ) -> None:
        expect_language(packed.language, ["cuda"], "emulator, packed kernels", EmulationError, "Run them one by one.")
        text, kernels = translate(packed.source, architecture_of(str(packed.target.get("arch", "sm_80"))))
        built = library.load(text, check, cache_dir)
        self._launches = []
        for stage in packed.stages:
            kernel = next((k for k in kernels if k.entry == stage.entry), None)
            wanted = [m.capacity for m in stage.members for _ in m.arguments]
            if (
                kernel is None
                or [n for _, n in kernel.columns] != wanted
                or not 1 <= stage.threads <= kernel.max_threads
            ):
                raise EmulationError(f"emulator: {stage.entry}: its source has another kernel or table than its stage.")
            self._launches.append((stage, kernel, getattr(built, f"emul_{kernel.entry}")))

    def launch(
        self,
        stage: int,
        sets: Sequence[Sequence[Mapping[str, tuple[int, int]]]],
        *,
        order: str = "forward",
        seed: int = 0,
    ) -> None:
        """Run one stage."""
        described, kernel, function = self._launches[stage]
        counts = [len(s) for s in sets]
        if any(n > m.capacity for n, m in zip(counts, described.members, strict=True)):
            raise EmulationError(f"{described.entry}: expected at most {[m.capacity for m in described.members]} "
                                 f"argument sets, got {counts}.")  # fmt: skip
        places = [s[n][name] if n < len(s) else (0, 0) for m, s in zip(described.members, sets, strict=True)
                  for name in m.arguments for n in range(m.capacity)]  # fmt: skip
        ends = (ctypes.c_uint * len(counts))(*described.ends(counts))
        regions = (library.Region * (len(places) + 1))()
        for region, (address, nbytes), (label, _) in zip(regions, places, kernel.parameters, strict=False):
            region.base, region.bytes, region.name, region.space = address or None, nbytes, label.encode(), 0
        regions[len(places)].base = ctypes.addressof(ends)
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        cores = usable_processors()
        launch = library.LaunchStruct(
            (ctypes.c_uint * 3)(described.grid(counts), 1, 1), (ctypes.c_uint * 3)(described.threads, 1, 1),
            described.dynamic_shared_bytes, ORDERS.index(order), max(1, min(cores, described.grid(counts))),
            int(kernel.converges), len(places), seed % 2**64, regions, ctypes.cast(message, ctypes.c_char_p),
            _MESSAGE_BYTES,
        )  # fmt: skip
        if function(ctypes.byref(launch)) != 0:
            raise EmulationError(f"{described.entry}: {message.value.decode(errors='replace')}.")
