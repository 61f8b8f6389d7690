"""Constants of a session: packed once; the original is released if only the packed form is read."""

from __future__ import annotations

import itertools
import mmap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from roller_runtime.core.dtypes import storage_dtype
from roller_runtime.cpu.threads import count_simultaneous_threads
from roller_runtime.errors import ModelError
from roller_runtime.plan.execution_plan import CONSTANT, Plan
from roller_runtime.plan.program_steps import Call, Copy, Foreign, ParallelGroup, Run, Step, values_read
from roller_runtime.session.cpu_kernel_loading import LoadedKernel, allocate_aligned, view_as_argument

#: Number of bytes per part in parallel copies of large constants.
_PART_BYTES = 1 << 23

#: A kernel and the constants that it packs; runs with equal keys share the panels.
PanelKey = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Constants:
    """Constant arrays of a session.

    Parameters
    ----------
    arrays
        Constants that calls read in unpacked form, by name.
    panels
        Packed constants, in the order of the kernel's panels.
    """

    arrays: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict)
    panels: Mapping[PanelKey, tuple[np.ndarray, ...]] = field(repr=False, default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Total size in bytes; arrays that kernels share count once."""
        several = itertools.chain(self.arrays.values(), *self.panels.values())
        return sum({a.__array_interface__["data"][0]: a.nbytes for a in several}.values())


def flatten_lanes(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield all steps, replacing groups by the steps of their lanes."""
    for step in steps:
        if isinstance(step, ParallelGroup):
            yield from itertools.chain.from_iterable(flatten_lanes(lane) for lane in step.lanes)
        else:
            yield step


def check_all_kernels_present(plan: Plan, kernels: Mapping[str, LoadedKernel]) -> None:
    """Raise an error if the kernel of any run is missing."""
    for step in flatten_lanes(plan.program.steps):
        if isinstance(step, Run) and step.kernel not in kernels:
            raise ModelError(f"{step.label}: no artifact for its kernel '{step.kernel}'. Compile the kernel first.")


def panel_key(run: Run, kernel: LoadedKernel) -> PanelKey:
    """Return the key of the panels that a run reads."""
    return run.kernel, tuple(run.inputs[n] for n in kernel.code.constants)


def constants_read_unpacked(plan: Plan, kernels: Mapping[str, LoadedKernel]) -> set[str]:
    """Return the names of the constants that steps read in unpacked form."""
    found: set[str] = set()

    def note(name: str) -> None:
        place = plan.places[name]
        if place.space == CONSTANT:
            found.add(place.name)

    for step in flatten_lanes(plan.program.steps):
        if isinstance(step, Run):
            for taken in kernels[step.kernel].code.taken:
                if taken.role == "input":
                    note(step.inputs[taken.position])
        elif isinstance(step, (Copy, Call, Foreign)):
            for name in values_read(step):
                note(name)
    return found


def pack_constants(plan: Plan, kernels: Mapping[str, LoadedKernel], consume: bool = False) -> Constants:
    """Pack the constants of a plan; ``consume`` removes originals that are read only in packed form."""
    check_all_kernels_present(plan, kernels)
    given, raw = plan.program.constants, constants_read_unpacked(plan, kernels)
    panels: dict[PanelKey, tuple[np.ndarray, ...]] = {}
    runs = [s for s in flatten_lanes(plan.program.steps) if isinstance(s, Run) and kernels[s.kernel].code.panels]
    uses = Counter(name for run in runs for name in _constants_packed_by(run, kernels[run.kernel], plan))
    for run in runs:
        key = panel_key(run, kernels[run.kernel])
        if key not in panels:
            panels[key] = _pack_panels(run, kernels[run.kernel], plan, given)
        for name in _constants_packed_by(run, kernels[run.kernel], plan):
            uses[name] -= 1
            if consume and not uses[name] and name not in raw and isinstance(given, dict):
                del given[name]
    held = dict[str, np.ndarray]()
    for name in sorted(raw):
        held[name] = _make_readable(given[name])
        if consume and isinstance(given, dict):
            given[name] = held[name]  # the copy replaces a memory map
    return Constants(held, panels)


def _constants_packed_by(run: Run, kernel: LoadedKernel, plan: Plan) -> tuple[str, ...]:
    """Return the names of the constants that a run packs, each once, with views resolved."""
    return tuple(dict.fromkeys(plan.places[run.inputs[n]].name for n in kernel.code.constants))


def _pack_panels(run: Run, kernel: LoadedKernel, plan: Plan, given: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    made = []
    for panel in kernel.code.panels:
        dtype = storage_dtype(panel.dtype)
        made.append(allocate_aligned(int(np.prod(panel.shape)) * dtype.itemsize).view(dtype).reshape(panel.shape))
    if kernel.code.prepare is not None:
        arguments = []
        for taken in kernel.code.prepare[1]:
            if taken.role == "panel":
                arguments.append(made[taken.position])
                continue
            arguments.append(
                view_as_argument(constant_bytes(run.inputs[taken.position], plan, given), taken, run.label)
            )
        assert kernel.pack is not None
        kernel.pack(*arguments)
    return tuple(made)


def constant_bytes(name: str, plan: Plan, given: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the bytes of a constant value, which may be a view of another constant."""
    place, value = plan.places[name], plan.program.values[name]
    if place.space != CONSTANT:
        raise ModelError(f"value '{name}': a kernel packs it once, so it must be a constant. Compile the kernel again.")
    flat = np.ascontiguousarray(given[place.name]).reshape(-1).view(np.uint8)
    return flat[place.offset_bytes : place.offset_bytes + value.nbytes]


def _make_readable(array: np.ndarray) -> np.ndarray:
    """Return a contiguous, aligned array that is not memory-mapped: the array itself if possible."""
    # A memory-mapped file is copied because it may change during the session.
    plain = array.flags.c_contiguous and array.flags.aligned and not _is_memory_mapped(array)
    if plain:
        return array
    return _copy_in_parallel(array) if array.nbytes >= 2 * _PART_BYTES else np.array(array, order="C", subok=False)


def _copy_in_parallel(array: np.ndarray) -> np.ndarray:
    """Return a copy of a large array; all threads copy, because page faults dominate."""
    source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    made = allocate_aligned(source.nbytes)
    with ThreadPoolExecutor(count_simultaneous_threads()) as pool:
        parts = (slice(at, at + _PART_BYTES) for at in range(0, source.nbytes, _PART_BYTES))
        for _ in pool.map(lambda part: np.copyto(made[part], source[part]), parts):
            continue
    return made.view(array.dtype).reshape(array.shape)


def _is_memory_mapped(array: np.ndarray) -> bool:
    held: object = array
    while isinstance(held, np.ndarray):
        held = held.base
    return isinstance(held, mmap.mmap)


def without_constants(plan: Plan) -> Plan:
    """Return the plan without its program's constants."""
    return replace(plan, program=replace(plan.program, constants={}))
