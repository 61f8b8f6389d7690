"""SymbolicRange: a few kernels for dynamic extents, and the choice for each call."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roller.artifact import Constant, KernelArtifact
from roller.compiler.compiled_kernel import CompiledKernel, load_launcher
from roller.compiler.dynamic.build_search_request import sizes_of_axes
from roller.compiler.dynamic.compile_kernels_for_all_sizes import SymbolicKernels
from roller.compiler.dynamic.dynamic_axes import DynamicAxes
from roller.compiler.dynamic.dynamic_size_box import Sizes
from roller.compiler.dynamic.kernel_choice import PricedKernel, RangeKernel, fastest_proven_kernel
from roller.compiler.dynamic.loaded_kernel import KEY
from roller.compiler.dynamic.operator_session import start_operator_session
from roller.compiler.dynamic.range_prover import RangeProver
from roller.compiler.dynamic.symbolic_programs import SymbolicExpr
from roller.errors import ArtifactError, LaunchError, counted
from roller.hardware import DeviceSpec
from roller.templates import price_with_templates
from roller.tile import RProgram
from roller_runtime.core.display import one_line_repr
from roller_runtime.core.fork_safe_lock import ForkSafeLock
from roller_runtime.core.validation import parse_call_sizes
from roller_runtime.session.range_session import PROOFS, RangeSession

#: Maximum number of sizes with cached launchers; the oldest is evicted.
_MOST_READY = 1024


@dataclass(frozen=True)
class SymbolicPiece:
    """A kernel and the sample sizes for which it is chosen.

    Parameters
    ----------
    sizes
        Extents by axis.
    program
        The kernel's program at the largest of these sizes.
    regret
        Maximum of the predicted time divided by that of the best program at the same sizes, minus one.
    """

    sizes: tuple[Sizes, ...]
    program: RProgram
    regret: float


class SymbolicRange(CompiledKernel):
    """Kernels of one expression for all extents of several axes; its properties are those at the largest extents.

    The first call with new sizes proves the kernel correct for these sizes. The proof takes some tens of milliseconds;
    nothing is compiled.

    Parameters
    ----------
    varies
        The axes and their ranges.
    expression
        The expression for all sizes.
    judged
        The kernels and their times.
    best
        Predicted seconds of the best program at each sample size.
    spec
        The device.
    doubt
        Reason why the choice may be wrong, if the timing was disturbed; otherwise empty.
    reachable
        Whether the device is present.
    """

    def __init__(
        self, varies: DynamicAxes, expression: SymbolicExpr, priced: Sequence[PricedKernel], best: np.ndarray,
        spec: DeviceSpec, doubt: str = "", reachable: bool = True,
    ) -> None:  # fmt: skip
        self.varies, self.expression, self.priced, self.spec = varies, expression, tuple(priced), spec
        self._best, self._doubt = best, doubt
        self._chosen: dict[tuple[int, ...], int] = {}
        self._device_module = spec.traits.module_for("compiler.dynamic")
        self._loaded: dict[int, Any] = {}
        self._ready: dict[Any, Any] = {}
        self._choosing = ForkSafeLock()
        held = {c.position for c in self.priced[0].kernel.artifact.constants}
        free = [n for n in range(len(varies.expr.inputs)) if n not in held]
        self._asked = sorted({free.index(p) for p, _ in varies.places.values()})
        self._positions = [free[n] for n in self._asked]
        self._one = self._asked[0] if len(self._asked) == 1 else None
        super().__init__(self._artifact(varies.box.high), reachable=reachable)

    @property
    def doubt(self) -> str:
        """Reason why the choice may be wrong, if the timing was disturbed; otherwise empty."""
        return self._doubt

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Smallest and largest extents by axis, in the argument order of :meth:`at`."""
        return dict(self.varies.box.ends)

    @property
    def kernels(self) -> tuple[RangeKernel, ...]:
        """The kernels."""
        return tuple(j.kernel for j in self.priced)

    def holding(self, constants: tuple[Constant, ...]) -> CompiledKernel:
        """Return the kernels bound to the values of their constant inputs."""
        if not constants:
            return self
        priced = [replace(j, kernel=kernel_holding_constants(j.kernel, constants)) for j in self.priced]
        return SymbolicRange(
            self.varies, self.expression, priced, self._best, self.spec, self._doubt, reachable=self._reachable
        )

    def save(self, path: str | os.PathLike[str], *, sources: bool = True, proofs: int | None = PROOFS) -> Path:
        """Prove the kernels, and write a folder for :func:`roller.load`, atomically.

        The loaded kernel needs no compiler and no proofs. :func:`roller.load_model` and
        :func:`roller_runtime.load_model` load the folder too, as a session with named inputs.

        Parameters
        ----------
        path
            Folder that does not exist or is empty.
        sources
            Whether to include the programs, estimates and sources of the kernels, for inspection.
        proofs
            Maximum number of combinations of extents to prove, some 10 ms each; ``None`` proves all. If there are more,
            the loaded kernel runs at all others what was proven at the nearest combination; see
            :meth:`roller_runtime.session.range_session.RangeSession.save`.

        Raises
        ------
        ArtifactError
            If the kernels are for a GPU, or the folder is not empty or cannot be written.
        NoCandidateError
            If no kernel is correct at some extents.
        """
        if self.spec.traits.blocks:
            raise ArtifactError(
                f"{path}: expected kernels for a processor, got those of a range for {self.spec.name}, which have no "
                f"saved form. Save kernel.at({', '.join(f'{n}={high}' for n, (_, high) in self.ranges.items())})."
            )
        return self._session().save(path, sources=sources, proofs=proofs)

    def _session(self) -> RangeSession:
        own = sizes_of_axes(self.varies, self.expression)
        kernels = SymbolicKernels(own, self.priced, self.spec, self._doubt)
        artifacts = [partial(kernels.artifact_at, n) for n in range(len(self.priced))]
        return start_operator_session(
            self.expression.at, own.points, own.box, artifacts, lambda _: RangeProver({KEY: kernels}, own.box),
            self.spec.units, self._doubt,
        )  # fmt: skip

    def __call__(self, *arrays: Any, out: Any = None, **options: Any) -> Any:
        """Run the kernel for the arrays' sizes.

        Parameters
        ----------
        *arrays
            One array per non-constant input, in call order.
        out, **options
            See :class:`~roller.compiler.compiled_kernel.CompiledKernel`.

        Raises
        ------
        LaunchError
            If a size is outside its range or an array does not fit the others.
        NoCandidateError
            If no kernel is correct at these sizes.
        """
        try:
            if self._one is not None:  # usual case: one array gives all sizes
                kernel = self._ready[arrays[self._one].shape]
            else:
                kernel = self._ready[tuple([arrays[n].shape for n in self._asked])]
        except (KeyError, IndexError, AttributeError, TypeError):
            kernel = self._prepared(self._sizes_of_arrays(arrays))
        if out is None and not options:  # fast path: keyword arguments cost more than the lookup
            return kernel(*arrays)
        return kernel(*arrays, out=out, **options)

    def at(self, *extents: int, **sizes: int) -> CompiledKernel:
        """Return the kernel for given sizes, by name or in the order of the ranges, without compiling anything.

        Raises
        ------
        LaunchError
            If a size is missing, unknown, repeated, not an integer, or outside its range.
        """
        wanted = parse_call_sizes(self.varies.expr.name, self.ranges, extents, sizes)
        outside = next((n for n, (low, high) in self.ranges.items() if not low <= wanted[n] <= high), None)
        if outside is not None:
            low, high = self.ranges[outside]
            raise LaunchError(
                f"{self.varies.expr.name}: expected an extent of '{outside}' from {low} to {high}, got "
                f"{wanted[outside]}. Compile for a range that has it."
            )
        return CompiledKernel(self._artifact(wanted), launcher=lambda _: self._prepared(wanted))

    @property
    def pieces(self) -> tuple[SymbolicPiece, ...]:
        """Each kernel with the sample sizes for which it is chosen, and with its predicted regret at these sizes."""
        seconds = np.array([j.seconds_at_samples for j in self.priced])
        taken = seconds.argmin(axis=0)
        found = []
        for n, j in enumerate(self.priced):
            columns = np.flatnonzero(taken == n)
            if columns.size:
                places = tuple(j.places[c] for c in columns)
                largest = max(places, key=lambda p: math.prod(p.values()))
                regret = float((j.predicted[columns] / self._best[columns]).max()) - 1.0
                found.append(SymbolicPiece(places, j.kernel.program.at(largest), regret))
        return tuple(found)

    def _proven_kernel_at(self, sizes: Sizes) -> int:
        key = tuple(sizes.values())
        with self._choosing:
            if key not in self._chosen:
                self._chosen[key] = fastest_proven_kernel(self.priced, self.expression.at(sizes), sizes, self.spec)
            return self._chosen[key]

    def _artifact(self, sizes: Sizes) -> KernelArtifact:
        kernel = self.priced[self._proven_kernel_at(sizes)].kernel
        artifact = kernel.at(sizes, self.expression.at(sizes))
        return replace(artifact, estimate=price_with_templates.estimate_program(artifact.program, self.spec).to_dict())

    def _load(self) -> Any:
        return self._prepared(self.varies.box.high)

    def _sizes_of_arrays(self, arrays: Sequence[Any]) -> dict[str, int]:
        """Return the sizes of a call's arrays, or the smallest for malformed arrays, which the kernel then refuses."""
        shapes: dict[int, Sequence[int]] = {}
        for n, position in zip(self._asked, self._positions, strict=True):
            shape = _array_shape(arrays[n]) if n < len(arrays) else ()
            if len(shape) != len(self.varies.expr.inputs[position].shape):
                return dict(self.varies.box.low)
            shapes[position] = shape
        return self.varies.said(shapes)

    def _prepared(self, sizes: Sizes) -> Any:
        self.expect_reachable()
        with self._choosing:
            row = self._proven_kernel_at(sizes)
            kernel, expression = self.priced[row].kernel, self.expression.at(sizes)
            shapes = tuple(expression.inputs[n].shape for n in self._positions)
            key = shapes[0] if self._one is not None else shapes
            found = self._ready.get(key)
            if found is None:
                if row not in self._loaded:
                    self._loaded[row] = load_launcher(kernel.artifact)
                if len(self._ready) >= _MOST_READY:
                    del self._ready[next(iter(self._ready))]
                found = self._ready[key] = self._loaded[row].reshaped(kernel.at(sizes, expression))
        return found

    def __repr__(self) -> str:
        ends = ", ".join(f"{n} from {low} to {high}" for n, (low, high) in self.ranges.items())
        what = f"{self.varies.expr.name} with {ends} on {self.spec.name}"
        return one_line_repr("SymbolicRange", f"{what}: {counted(len(self.priced), 'kernel')}")


def kernel_holding_constants(kernel: Any, constants: tuple[Constant, ...]) -> RangeKernel:
    """Return a kernel that holds the given constants."""
    held: RangeKernel = replace(kernel, artifact=replace(kernel.artifact, constants=constants))
    return held


def _array_shape(array: Any) -> tuple[int, ...]:
    if not hasattr(array, "shape") and hasattr(array, "__dlpack__"):
        array = np.from_dlpack(array)
    return tuple(np.shape(array) if not hasattr(array, "shape") else array.shape)
