"""A session with dynamic sizes: one plan, a few kernels per step, and no compilation for new sizes."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roller_runtime.core.display import one_line_repr
from roller_runtime.core.fork_safe_lock import ForkSafeLock
from roller_runtime.core.gc_pause import gc_paused
from roller_runtime.core.recently_used import RecentlyUsed
from roller_runtime.core.unpicklable import Unpicklable
from roller_runtime.core.validation import parse_call_sizes, validate_flag, validate_integer
from roller_runtime.core.validation import validate_path as path_of
from roller_runtime.errors import ArtifactError, LaunchError, RollerError, counted, shown
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.program_steps import Run
from roller_runtime.plan.proven_kernels import ProvenKernels
from roller_runtime.session.call_metrics import HeldArenas, SizeClassMeters
from roller_runtime.session.caller_arrays import TensorDescription
from roller_runtime.session.cpu_kernel_loading import LoadedKernel
from roller_runtime.session.cpu_session import Session
from roller_runtime.session.packed_constants import flatten_lanes
from roller_runtime.session.range_plan import Sizes, split_variant_key
from roller_runtime.session.save_ranges import ProvenChooser, RangeParts, save_ranges
from roller_runtime.session.save_session import SessionParts
from roller_runtime.session.session_metrics import SessionMetrics
from roller_runtime.session.shared_arena_session import SharedArenaSession
from roller_runtime.storage.verified_container import check_output_folder

if TYPE_CHECKING:
    from roller_runtime.session.session_profile import Profile

#: Combinations of sizes of each operator that are proven when a session is saved.
PROOFS = 500
_LOG = logging.getLogger("roller.session")
#: Exceptions that the data of a plan can raise if they are malformed.
_MALFORMED_PLAN = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
#: Steps of the ready sessions that stay, of which each takes some 3 KB; what a session takes besides, in steps; and the
#: least and largest number of such sessions, one per choice of sizes.
_READY_STEPS, _STEPS_PER_SESSION, _LEAST_READY, _MOST_READY = 50_000, 4, 256, 4096


class RangeSession(Unpicklable):
    """A model that runs on this machine's processor at all sizes of its ranges.

    Calls are the same as for a :class:`~roller_runtime.session.cpu_session.Session`; the shapes of the arrays determine
    the sizes. Nothing is compiled for new sizes, but the first call at new sizes proves that the kernels are correct
    there: this takes some milliseconds per kernel, or tenths of a second if a kernel must run. A session that was saved
    and loaded needs no proofs.

    Parameters
    ----------
    parts
        Plan, loaded kernels and packed constants.
    """

    other_way: ClassVar[str] = "Save it with save(folder) and load it with load_model; threads may share it."

    def __init__(self, parts: RangeParts) -> None:
        #: Plan, kernels, constants and everything else that the session is made from.
        self.parts = parts
        self.plan, self.cores, self.doubt, self.runner = parts.plan, parts.cores, parts.doubt, parts.runner
        self.constants, self._loaded = parts.constants, parts.kernels
        #: Ready sessions by the shapes of inputs with dynamic sizes.
        self._by_shapes: dict[tuple[Any, ...], Session] = {}
        self._ready: RecentlyUsed[tuple[int, ...], SharedArenaSession] = RecentlyUsed(
            _LEAST_READY, before_drop=self._by_shapes.clear
        )
        self._asked = [name for name, dims in self.plan.inputs.items() if any(isinstance(d, str) for d in dims)]
        self._lock, self._arenas = ForkSafeLock(), list[np.ndarray]()
        self._meters, self._arenas_held = SizeClassMeters(self.plan.ranges), HeldArenas()

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.plan.name or "model"

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Smallest and largest value of each size by name, in the order of :meth:`at`'s arguments.

        A size with a step, :attr:`steps`, may only have multiples of it.
        """
        return self.plan.ranges

    @property
    def steps(self) -> dict[str, int]:
        """Steps of the sizes that have one above 1."""
        return dict(self.plan.steps)

    @property
    def inputs(self) -> tuple[TensorDescription, ...]:
        """Names, shapes and dtypes of the inputs, in order; a dynamic dimension is given by the name of its size."""
        dtypes = self.plan.dtypes
        return tuple(TensorDescription(n, tuple(dims), dtypes[n]) for n, dims in self.plan.inputs.items())

    @property
    def outputs(self) -> tuple[TensorDescription, ...]:
        """Names, shapes and dtypes of the outputs; a dimension that is another function of the sizes is ``None``."""
        dtypes = self.plan.dtypes
        return tuple(TensorDescription(n, tuple(dims), dtypes[n]) for n, dims in self.plan.outputs.items())

    def get_inputs(self) -> list[TensorDescription]:
        """Return :attr:`inputs`, as in ONNX Runtime."""
        return list(self.inputs)

    def get_outputs(self) -> list[TensorDescription]:
        """Return :attr:`outputs`, as in ONNX Runtime."""
        return list(self.outputs)

    @property
    def most_ready(self) -> int:
        """Number of choices of sizes, those used last, that need no preparation; known after the first call."""
        return self._ready.most

    @property
    def arena_bytes(self) -> int:
        """Memory of one call at the largest sizes, in bytes, in addition to its inputs and outputs."""
        return self.plan.arena_bytes

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Run the model; see :meth:`roller_runtime.session.session_interface.ModelCalls.run` for arguments and results.

        Raises
        ------
        LaunchError
            If a size is outside its range, arrays disagree on a size, or an array does not fit.
        """
        try:  # the common case: known shapes give the session without computing sizes
            session = self._by_shapes[self._dynamic_shapes(arguments)]
        except (KeyError, IndexError, AttributeError, TypeError):
            return self._meters.measure_with_preparation(self._session_by_array_shapes, arguments, options)
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
            if len(self._by_shapes) >= self._ready.most:
                self._by_shapes.clear()
            self._by_shapes[self._dynamic_shapes(arguments)] = session
        return session

    def metrics(self) -> SessionMetrics:
        """Return the counts of all calls, in total and by classes of sizes, and of preparations for new sizes.

        See :meth:`roller_runtime.session.session_interface.ModelCalls.metrics`. The duration of a call that prepares
        new sizes includes the preparation. Calls of the sessions that :meth:`at` returns are counted too.
        """
        total, classes = self._meters.metrics()
        prepared, held = self._meters.prepared.metrics().latency, self._arenas_held.sizes_bytes()
        return SessionMetrics(
            total.failures, total.in_progress, total.latency, self.name, classes, prepared.count, prepared.sum_s,
            len(held), sum(held), self.doubt,
        )  # fmt: skip

    def profile(self, feeds: Mapping[str, Any], *, repeats: int = 20) -> Profile:
        """Time every step at the sizes of ``feeds``.

        See :meth:`roller_runtime.session.session_interface.ModelCalls.profile`.

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
        return self._session_of_sizes(parse_call_sizes(self.name, self.plan.ranges, values, sizes))

    def save(self, folder: str | os.PathLike[str], *, sources: bool = True, proofs: int | None = PROOFS) -> Path:
        """Prove the kernels, and write the model for ``load_model``, atomically.

        Calls of the loaded session need no proofs and no compiler. An operator whose sizes have at most ``proofs``
        combinations is proven at each. Others are proven at about as many: at the ends of all ranges and at values of
        each size, combined with random values of the other sizes; elsewhere, they run the kernel that was proven at the
        nearest sizes.

        Parameters
        ----------
        folder
            Folder that does not exist or is empty.
        sources
            Whether to include the programs, estimates and sources of the kernels, for inspection.
        proofs
            Maximum number of combinations of sizes to prove for each operator, some 10 ms each; ``None`` proves all. A
            loaded session is saved with the proofs that it has.

        Raises
        ------
        ArtifactError
            If the folder is not empty or cannot be written.
        NoCandidateError
            If an operator has no correct kernel at some sizes.
        """
        target = path_of(folder, "folder", error=ArtifactError)
        sources = validate_flag(sources, "sources", error=ArtifactError)
        if proofs is not None:
            proofs = validate_integer(
                proofs, "proofs", 1, expected="a number of at least 1, or None", error=ArtifactError
            )
        check_output_folder(target)  # before minutes of proofs
        return save_ranges(self.parts, target, self.plan.chooser.prove_all(proofs), sources=sources)

    def proven(self, proofs: int | None = PROOFS) -> RangeSession:
        """Return a session whose calls need no proofs, as one that is saved and loaded.

        Parameters
        ----------
        proofs
            See :meth:`save`.

        Raises
        ------
        NoCandidateError
            If an operator has no correct kernel at some sizes.
        """
        return self.with_proofs(self.plan.chooser.prove_all(proofs))

    def with_proofs(self, results: Mapping[str, ProvenKernels]) -> RangeSession:
        """Return a session whose calls run the kernels that were proven, by the results of ``prove_all``."""
        plan = replace(self.plan, chooser=ProvenChooser.of(self.plan.name, results, self.plan.kernels))
        return RangeSession(replace(self.parts, plan=plan))

    def sizes_of(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """Return the sizes that arrays by name determine; a size that no array has takes its smallest value.

        Raises
        ------
        LaunchError
            If arrays disagree on a size.
        """
        return self._sizes_of_arrays((feeds,))

    def _session_of_sizes(self, sizes: Sizes) -> Session:
        found = self._ready.get(tuple([sizes[n] for n in self.plan.ends]))
        return self._prepare_sizes(sizes) if found is None else found

    def _prepare_sizes(self, sizes: Sizes) -> Session:
        start = perf_counter()
        made = self._meters.prepared.measure_since(start, partial(self._make_session, sizes))
        if _LOG.isEnabledFor(logging.DEBUG):
            said = ", ".join(f"{n}={sizes[n]}" for n in self.plan.ends)
            _LOG.debug("%s: prepared %s in %.1f ms", self.name, said, 1e3 * (perf_counter() - start))
        return made

    def _make_session(self, sizes: Sizes) -> Session:
        ends = self.plan.ranges
        for name, (low, high) in ends.items():
            step = self.plan.steps.get(name, 1)
            if not low <= sizes[name] <= high or sizes[name] % step:
                multiples = f" in multiples of {step}" if step > 1 else ""
                raise LaunchError(
                    f"{self.name}: expected '{name}' from {low} to {high}{multiples}, got {shown(sizes[name])}. "
                    "Compile for a range that includes it."
                )
        chosen = tuple(int(sizes[n]) for n in ends)
        try:
            made = self._bind_at(dict(zip(ends, chosen, strict=True)))
        except _MALFORMED_PLAN as err:  # of a folder that somebody changed and gave fitting checksums
            if isinstance(err, RollerError) or not isinstance(self.plan.chooser, ProvenChooser):
                raise
            raise ArtifactError(f"{self.name}: the plan is damaged at {dict(sizes)} ({err!r}). Save it again.") from err
        with self._lock:
            steps = _STEPS_PER_SESSION + sum(1 for _ in flatten_lanes(made.plan.program.steps))
            self._ready.most = min(_MOST_READY, max(_LEAST_READY, _READY_STEPS // steps))
            self._ready.put(chosen, made)
        return made

    # What it makes is kept; without the pause, every few preparations would set off a full collection of some 40 ms.
    @gc_paused()
    def _bind_at(self, chosen: Sizes) -> SharedArenaSession:
        """Return the session for sizes within the ranges."""
        sizes = self.plan.with_derived_sizes({n: x // self.plan.steps.get(n, 1) for n, x in chosen.items()})
        plan = self.plan.at(sizes)
        self._check_input_shapes(plan, {**sizes, **chosen})
        kernels: dict[str, LoadedKernel] = {}
        for run in flatten_lanes(plan.program.steps):
            if isinstance(run, Run) and run.kernel not in kernels:
                key, number = split_variant_key(run.kernel)
                code = self.plan.kernels[key][number].at(sizes)
                kernels[run.kernel] = replace(self._loaded[run.kernel], code=code)
        parts = SessionParts(plan, kernels, self.constants, self.cores, self.runner, {})
        predicted = self.plan.chooser.predicted
        made = SharedArenaSession.of(
            parts, self._arenas, lambda key: predicted(*split_variant_key(key), sizes),
            self._meters.of(chosen), self._arenas_held,
        )  # fmt: skip
        made.doubt = self.doubt
        return made

    def _check_input_shapes(self, plan: Plan, sizes: Sizes) -> None:
        """Raise an error for sizes that a stride skips: the plan then has those of the next smaller result."""
        for name, dims in self.plan.inputs.items():
            shape = plan.program.values[name].shape
            # A graph of PyTorch may have dimensions such as 'n + 1', which are no sizes.
            given = tuple(sizes.get(d, n) if isinstance(d, str) else d for d, n in zip(dims, shape, strict=True))
            if given != shape:
                raise LaunchError(
                    f"{self.name}: '{name}': expected a shape with a result, such as {shape}, got {given}. Reshape it."
                )

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
        return {n: found.get(n, low) for n, (low, _) in self.plan.ranges.items()}

    def __repr__(self) -> str:
        """Return the name, sizes and number of kernels on one line."""
        steps = {n: f" in steps of {step}" for n, step in self.plan.steps.items()}
        sizes = ", ".join(f"{n} from {low} to {high}{steps.get(n, '')}" for n, (low, high) in self.ranges.items())
        return one_line_repr("RangeSession", f"{self.name}: {sizes}, {counted(len(self._loaded), 'kernel')}")


def _shape_of_array(array: Any) -> tuple[int, ...]:
    """Return the shape of an object without a ``shape`` attribute; ``()`` if it is not an array."""
    try:
        return np.shape(np.from_dlpack(array) if hasattr(array, "__dlpack__") else array)
    except (RuntimeError, BufferError, TypeError, ValueError):
        return ()
