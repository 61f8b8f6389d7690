"""A session with dynamic sizes: one plan, a few kernels per step, and no compilation for new sizes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roller.core.display import one_line_repr
from roller.core.unpicklable import Unpicklable
from roller.core.validation import parse_call_sizes
from roller.errors import ArtifactError, LaunchError, counted, shown
from roller.models.graph.program_steps import ParallelGroup, Run, Step
from roller.models.session.call_frame import Frame
from roller.models.session.caller_arrays import TensorDescription
from roller.models.session.cpu_kernel_loading import LoadedKernel, allocate_aligned, load_kernel
from roller.models.session.cpu_session import Session
from roller.models.session.native_runner import Runner, load_or_build_runner_image, load_runner
from roller.models.session.packed_constants import Constants, PanelKey, flatten_lanes, pack_constants
from roller.models.session.range_plan import RangeKernel, RangePlan, Sizes, split_variant_key, variant_key
from roller.models.session.save_session import SessionParts

if TYPE_CHECKING:
    from roller.models.session.session_profile import Profile

#: Maximum number of ready sessions, one per choice of sizes; the oldest is dropped.
_MOST_READY = 256


def _index_of_first_same_layout(several: Sequence[RangeKernel]) -> Callable[[RangeKernel], int]:
    """Return a function that maps a kernel to the index of the first kernel with the same layout of constants."""
    layouts = [k.layout for k in several]
    return lambda kernel: layouts.index(kernel.layout)


class RangeSession(Unpicklable):
    """A model that runs on this machine's processor at all sizes of its ranges.

    Calls are the same as for a :class:`~roller.models.session.cpu_session.Session`; the shapes of the arrays determine
    the sizes. The first call at new sizes takes some milliseconds longer per kernel, or tenths of a second if a kernel
    must run to prove its correctness at these sizes; nothing is compiled.

    Parameters
    ----------
    plan
        Steps, places and kernels.
    cores
        Number of threads per call, including the calling thread.
    doubt
        Reason why other programs may have disturbed the choice of kernels; empty if there is none.

    Raises
    ------
    LaunchError
        If a kernel cannot be loaded.
    """

    other_way: ClassVar[str] = "Compile the model where it is needed: the cache has its kernels. Threads may share it."

    def __init__(self, plan: RangePlan, *, cores: int, doubt: str = "") -> None:
        self.plan, self.cores, self.doubt = plan, cores, doubt
        self.runner: Runner = load_runner(load_or_build_runner_image())
        self.runner.use_threads(cores)
        self.loaded = {
            variant_key(key, n): load_kernel(k.code, k.library, self.runner.launch)
            for key, several in plan.kernels.items()
            for n, k in enumerate(several)
        }
        self.constants = self._pack_all_layouts()
        self._ready: dict[tuple[int, ...], _FixedSizeSession] = {}
        #: Ready sessions by the shapes of inputs with dynamic sizes.
        self._by_shapes: dict[tuple[Any, ...], Session] = {}
        self._asked = [name for name, dims in plan.inputs.items() if any(isinstance(d, str) for d in dims)]
        self._lock, self._arenas = threading.Lock(), list[np.ndarray]()

    def _pack_all_layouts(self) -> Constants:
        """Pack the constants once for each layout that a kernel reads."""
        largest = self.plan.largest
        firsts = {k: list(dict.fromkeys(map(_index_of_first_same_layout(x), x))) for k, x in self.plan.kernels.items()}
        arrays, panels = dict[str, np.ndarray](), dict[PanelKey, tuple[np.ndarray, ...]]()
        for turn in range(max(map(len, firsts.values()), default=1)):

            def choose_variant(step: Step, turn: int = turn) -> Step:
                if isinstance(step, ParallelGroup):
                    return replace(step, lanes=tuple(tuple(map(choose_variant, lane)) for lane in step.lanes))
                if not isinstance(step, Run):
                    return step
                return replace(step, kernel=variant_key(step.kernel, firsts[step.kernel][turn]))

            steps = largest.program.steps
            if turn:
                steps = tuple(s for s in flatten_lanes(steps) if isinstance(s, Run) and turn < len(firsts[s.kernel]))
            program = replace(largest.program, steps=tuple(map(choose_variant, steps)))
            made = pack_constants(replace(largest, program=program), self.loaded)
            arrays |= made.arrays
            panels |= made.panels
        for run in flatten_lanes(largest.program.steps):
            if isinstance(run, Run):
                several = self.plan.kernels[run.kernel]
                for n, kernel in enumerate(several):
                    inputs = tuple(run.inputs[c] for c in kernel.code.constants)
                    held = panels.get((variant_key(run.kernel, _index_of_first_same_layout(several)(kernel)), inputs))
                    if held is not None:
                        panels[variant_key(run.kernel, n), inputs] = held
        return Constants(arrays, panels)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.plan.largest.program.name or "model"

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Smallest and largest value of each size by name, in the order of :meth:`at`'s arguments."""
        return dict(self.plan.ends)

    @property
    def inputs(self) -> tuple[TensorDescription, ...]:
        """Names, shapes and dtypes of the inputs, in order; a dynamic dimension is given by the name of its size."""
        values = self.plan.largest.program.values
        return tuple(TensorDescription(n, tuple(dims), values[n].dtype) for n, dims in self.plan.inputs.items())

    @property
    def outputs(self) -> tuple[TensorDescription, ...]:
        """Names, shapes and dtypes of the outputs; a dimension that is another function of the sizes is ``None``."""
        values = self.plan.largest.program.values
        return tuple(TensorDescription(n, tuple(dims), values[n].dtype) for n, dims in self.plan.outputs.items())

    def get_inputs(self) -> list[TensorDescription]:
        """Return :attr:`inputs`, as in ONNX Runtime."""
        return list(self.inputs)

    def get_outputs(self) -> list[TensorDescription]:
        """Return :attr:`outputs`, as in ONNX Runtime."""
        return list(self.outputs)

    @property
    def arena_bytes(self) -> int:
        """Memory of one call at the largest sizes, in bytes, in addition to its inputs and outputs."""
        return self.plan.largest.arena_bytes

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Run the model; see :meth:`roller.models.session.session_interface.ModelCalls.run` for arguments and results.

        Raises
        ------
        LaunchError
            If a size is outside its range, arrays disagree on a size, or an array does not fit.
        """
        try:  # the common case: known shapes give the session without computing sizes
            session = self._by_shapes[self._dynamic_shapes(arguments)]
        except (KeyError, IndexError, AttributeError, TypeError):
            session = self._session_by_array_shapes(arguments)
        return session.run(*arguments, **options)

    __call__ = run

    def _dynamic_shapes(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shapes of a call's inputs with dynamic sizes; raise any exception if the arguments lack them."""
        feeds = arguments[0]
        held = feeds if type(feeds) is dict else dict(zip(self.plan.inputs, arguments, strict=False))
        return tuple([held[name].shape for name in self._asked])

    def _session_by_array_shapes(self, arguments: Sequence[Any]) -> Session:
        """Return the session for a call and store it by the shapes of the arrays."""
        session = self._session_of_sizes(self._sizes_of_arrays(arguments))
        with self._lock, contextlib.suppress(KeyError, IndexError, AttributeError, TypeError):
            if len(self._by_shapes) >= _MOST_READY:
                self._by_shapes.clear()
            self._by_shapes[self._dynamic_shapes(arguments)] = session
        return session

    def profile(self, feeds: Mapping[str, Any], *, repeats: int = 20) -> Profile:
        """Time every step at the sizes of ``feeds``.

        See :meth:`roller.models.session.session_interface.ModelCalls.profile`.

        Raises
        ------
        LaunchError
            If :meth:`run` would raise it, or ``feeds`` is not a mapping.
        """
        if not isinstance(feeds, Mapping):
            raise LaunchError(
                f"{self.name}: profile: expected arrays by name, which say the sizes, got {shown(feeds)}. "
                "at(...).profile() takes random ones."
            )
        return self._session_of_sizes(self._sizes_of_arrays((feeds,))).profile(feeds, repeats=repeats)

    def at(self, *values: int, **sizes: int) -> Session:
        """Return the session for fixed sizes, without compiling anything.

        Parameters
        ----------
        *values, **sizes
            Every size, in the order of :attr:`ranges` or by name.

        Raises
        ------
        LaunchError
            If a size is missing, unknown, given twice, not a whole number, or outside its range.
        """
        return self._session_of_sizes(parse_call_sizes(self.name, self.plan.ends, values, sizes))

    def save(self, folder: str | os.PathLike[str], *, sources: bool = True) -> Path:
        """Raise an error: only a session for fixed sizes can be saved, with ``at(**sizes).save(folder)``.

        Raises
        ------
        ArtifactError
            Always.
        """
        del sources
        raise ArtifactError(
            f"{folder}: expected the session of some sizes, got that of a range, which has no format yet. "
            f"Save session.at({', '.join(f'{n}={high}' for n, (_, high) in self.plan.ends.items())})."
        )

    def _session_of_sizes(self, sizes: Sizes) -> Session:
        try:
            return self._ready[tuple(sizes[n] for n in self.plan.ends)]
        except KeyError:
            return self._make_session(sizes)

    def _make_session(self, sizes: Sizes) -> Session:
        ends = self.plan.ends
        for name, (low, high) in ends.items():
            if not low <= sizes[name] <= high:
                raise LaunchError(
                    f"{self.name}: expected '{name}' from {low} to {high}, got {shown(sizes[name])}. "
                    "Compile for a range that has it."
                )
        chosen = tuple(int(sizes[n]) for n in ends)
        sizes = self.plan.with_derived_sizes(sizes)
        plan = self.plan.at(sizes)
        kernels: dict[str, LoadedKernel] = {}
        for key, several in self.plan.kernels.items():
            for n, kernel in enumerate(several):
                name = variant_key(key, n)
                kernels[name] = replace(self.loaded[name], code=kernel.at(sizes))
        parts = SessionParts(plan, kernels, self.constants, self.cores, self.runner, {})
        made = _FixedSizeSession.of(parts, self._arenas, lambda key: self.plan.predict(*split_variant_key(key), sizes))
        with self._lock:
            if len(self._ready) >= _MOST_READY:
                del self._ready[next(iter(self._ready))]
                self._by_shapes.clear()
            self._ready[chosen] = made
        return made

    def _sizes_of_arrays(self, arguments: Sequence[Any]) -> dict[str, int]:
        """Return the sizes that a call's arrays determine; a size that no array has takes its smallest value."""
        feeds = next((a for a in arguments if isinstance(a, Mapping)), None)
        arrays = dict(feeds) if feeds is not None else dict(zip(self.plan.inputs, arguments, strict=False))
        found: dict[str, int] = {}
        for name, dims in self.plan.inputs.items():
            shape = getattr(arrays.get(name), "shape", None)
            if shape is None:
                shape = _shape_of_array(arrays[name]) if name in arrays else ()
            if name in arrays and len(shape) != len(dims):
                expected = ", ".join(map(str, dims))
                raise LaunchError(
                    f"{self.name}: '{name}': expected an array of shape ({expected}), got {tuple(shape)}. Reshape it."
                )
            for position, dim in enumerate(dims):
                if isinstance(dim, str) and position < len(shape):
                    said = int(shape[position])
                    if found.setdefault(dim, said) != said:
                        raise LaunchError(
                            f"{self.name}: '{name}': expected {found[dim]} for '{dim}', as the arrays before it have, "
                            f"got {said}. All arrays of a call have one '{dim}'."
                        )
        return {n: found.get(n, low) for n, (low, _) in self.plan.ends.items()}

    def __repr__(self) -> str:
        """Return the name, sizes and number of kernels on one line."""
        sizes = ", ".join(f"{n} from {low} to {high}" for n, (low, high) in self.plan.ends.items())
        return one_line_repr("RangeSession", f"{self.name}: {sizes}, {counted(len(self.loaded), 'kernel')}")


def _shape_of_array(array: Any) -> tuple[int, ...]:
    """Return the shape of an object without a ``shape`` attribute; ``()`` if it is not an array."""
    try:
        return np.shape(np.from_dlpack(array) if hasattr(array, "__dlpack__") else array)
    except (RuntimeError, BufferError, TypeError, ValueError):
        return ()


class _FixedSizeSession(Session):
    """A session for fixed sizes; it shares arenas with the sessions for all other sizes."""

    _arenas: list[np.ndarray]
    _by_arena: dict[int, Frame]
    _predict: Callable[[str], float]

    @classmethod
    def of(cls, parts: SessionParts, arenas: list[np.ndarray], predict: Callable[[str], float]) -> _FixedSizeSession:
        """Return a session that borrows memory from ``arenas``; ``predict`` returns predicted seconds by kernel key."""
        session = cls.__new__(cls)
        session._arenas, session._by_arena, session._predict = arenas, {}, predict
        session._start(parts)
        arenas += [f.arena for f in session._frames]
        session._frames.clear()
        return session

    @property
    def said(self) -> dict[str, tuple[float | None, str]]:
        """Predicted seconds of the kernels that run, by key, without bottlenecks."""
        used = {s.kernel for s in flatten_lanes(self.plan.program.steps) if isinstance(s, Run)}
        return {key: (self._predict(key), "") for key in used}

    def _frame(self, arena: np.ndarray | None = None) -> Frame:
        if arena is None:
            try:
                arena = self._arenas.pop()  # atomic
            except IndexError:
                arena = allocate_aligned(self.plan.arena_bytes)
        frame = self._by_arena.get(id(arena))
        if frame is None:
            frame = self._by_arena[id(arena)] = super()._frame(arena)
        return frame

    def _call(self, inputs: Any, out: Any, on_device: bool, seconds: dict[int, float] | None = None) -> Any:
        frame = self._frame()
        self._frames.append(frame)
        try:
            return super()._call(inputs, out, on_device, seconds)
        finally:
            while self._frames:
                self._arenas.append(self._frames.pop().arena)
