"""Compiles CPU probes, allocates memory for them, and runs their kernels on threads bound to cores."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from roller.errors import BuildError, LaunchError
from roller.hardware import DeviceSpec
from roller.probing.registry import microbench_folder
from roller.probing.robust_window_statistics import MeasuredValue, median_of_fastest_windows
from roller_runtime.core.temporary_folders import scratch_folder
from roller_runtime.cpu import threads

#: Compiler flags: optimization as in the code generator's backend, without floating-point traps and ``errno``.
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared",
         "-fvisibility=hidden", "-pthread")  # fmt: skip
#: Length of a window in seconds: long relative to the clock's resolution, short relative to a time slice (4 ms).
WINDOW_S = 4e-4
_TIMEOUT_S = 120.0


def native_compiler_flags(machine: str | None = None) -> tuple[str, ...]:
    """Return the C compiler flags for all vector instructions of this CPU.

    >>> native_compiler_flags("aarch64")
    ('-mcpu=native',)
    """
    arm = (machine or platform.machine()).lower() in ("aarch64", "arm64")
    return ("-mcpu=native",) if arm else ("-march=native", "-mprefer-vector-width=512")


def compile_library(sources: Sequence[Path], target: Path, flags: Sequence[str] = ()) -> Path:
    """Compile C sources into a shared library with the system's C compiler (``CC``, or else ``cc``)."""
    name = os.environ.get("CC") or "cc"
    path = shutil.which(name)
    if path is None:
        raise BuildError(
            f"probes: expected the C compiler '{name}', found none on PATH. Install one (Debian: apt-get install gcc), "
            "or name another one in the environment variable CC."
        )
    command = [path, *FLAGS, *native_compiler_flags(), *flags, "-o", str(target), *map(str, sources)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as err:
        raise BuildError(f"probes: {name} took longer than {_TIMEOUT_S:.0f} s. Run `roller probe` again.") from err
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"probes: {name} refused the probes: {'; '.join(errors[:3])}. Update the compiler.")
    return target


class CpuSession:
    """A measurement session on this CPU, with ``windows`` windows and at most ``budget_s`` seconds per measurement."""

    def __init__(self, spec: DeviceSpec, windows: int = 40, budget_s: float = 0.06) -> None:
        self.spec, self.windows, self.budget_s = spec, windows, budget_s
        self.processors = one_processor_per_core(spec.units)
        #: Fastest measured clock: the first probe sets it, and the others count cycles with it.
        self.clock_hz, self.clocked = spec.clock_hz, False
        self._open = contextlib.ExitStack()
        #: Folder of built libraries, removed with the session.
        self.folder = Path(self._open.enter_context(scratch_folder("probe-")))
        self._blocks: dict[tuple[str, int, bool], list[int]] = {}
        sources = [p for p in sorted((microbench_folder() / "cpu").glob("*.c")) if p.stem != "launch"]
        flags = [f"-DVECTOR_BYTES={4 * spec.teu.lanes}"]
        try:
            self.library = ctypes.CDLL(str(compile_library(sources, self.folder / "probes.so", flags)))
        except BaseException:
            self._open.close()
            raise
        self.library.probe_block.restype = ctypes.c_void_p
        self.library.probe_block.argtypes = [ctypes.c_long, ctypes.c_int]
        self.library.probe_unblock.argtypes = [ctypes.c_void_p, ctypes.c_long]

    def __enter__(self) -> CpuSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for (_, size, _), addresses in self._blocks.items():
            for address in addresses:
                self.library.probe_unblock(address, size)
        self._blocks.clear()
        self._open.close()

    @property
    def cores(self) -> int:
        """Number of cores that are measured together."""
        return len(self.processors)

    def constant(self, name: str) -> int:
        """Return an integer exported by the sources, such as the unrolled length of a loop."""
        return ctypes.c_int.in_dll(self.library, name).value

    def blocks(self, name: str, size: int, count: int = 1, large_pages: bool = True) -> list[int]:
        """Return the addresses of ``count`` blocks of ``size`` bytes, each touched first by its core."""
        key = (name, size, large_pages)
        held = self._blocks.setdefault(key, [])
        while len(held) < count:
            address = self.library.probe_block(size, int(large_pages))
            if not address:
                raise LaunchError(f"probes: expected {size >> 20} MiB of memory, got none. Free some.")
            held.append(address)
            self.once("probe_touch", [address], size, processor=self.processors[(len(held) - 1) % self.cores])
        return held[:count]

    def once(self, kernel: str, data: Sequence[int], size: int, repeat: int = 1, processor: int | None = None) -> None:
        """Run a kernel that prepares data, on one core."""
        where = self.processors[0] if processor is None else processor
        self._run_windows(kernel, repeat, data[:1], size, (0, 0), (where,), 1, 0.0)

    def seconds(
        self,
        kernel: str,
        data: Sequence[int] = (0,),
        size: int = 0,
        cores: int = 1,
        march: tuple[int, int] = (0, 0),
        repeat: int | None = None,
        turns: int = 1,
    ) -> MeasuredValue:
        """Return the time of one repetition of a kernel, in seconds."""
        where = self.processors[:cores]
        addresses = list(data) if len(data) == len(where) else [data[0]] * len(where)
        count = repeat or self._repetitions_per_window(kernel, addresses, size, march, where)
        windows = self._run_windows(
            kernel, count, addresses, size, march, where, max(3, self.windows // turns), self.budget_s
        )
        return median_of_fastest_windows(windows).times(1.0 / count)

    def _repetitions_per_window(
        self, kernel: str, data: Sequence[int], size: int, march: tuple[int, int], where: Sequence[int]
    ) -> int:
        count = 1
        while True:
            taken = min(self._run_windows(kernel, count, data, size, march, where, 3, 0.02))
            if taken > WINDOW_S / 4:
                return max(1, round(count * WINDOW_S / taken))
            count *= max(2, min(16, int(WINDOW_S / 2 / max(taken, 1e-8))))

    def _run_windows(
        self, kernel: str, repeat: int, data: Sequence[int], size: int, march: tuple[int, int],
        where: Sequence[int], windows: int, budget_s: float,
    ) -> list[float]:  # fmt: skip
        entry = ctypes.cast(getattr(self.library, kernel), ctypes.c_void_p)
        taken = (ctypes.c_double * windows)()
        count = self.library.probe_drive(
            entry, ctypes.c_long(repeat), (ctypes.c_void_p * len(data))(*data), ctypes.c_long(size),
            ctypes.c_long(march[0]), ctypes.c_long(march[1]), (ctypes.c_int * len(where))(*where), len(where), windows,
            ctypes.c_double(budget_s), taken,
        )  # fmt: skip
        if count < 1:
            raise LaunchError(f"probes: cannot start {len(where)} threads. Raise the limit of processes (ulimit -u).")
        return list(taken[:count])


def one_processor_per_core(cores: int) -> tuple[int, ...]:
    """Return one processor per physical core available to this process, at most ``cores`` of them."""
    chosen: dict[str, int] = {}
    for processor in threads.processors():
        chosen.setdefault(threads.core_id_of_processor(processor), processor)
    return tuple(chosen.values())[: max(1, cores)]
