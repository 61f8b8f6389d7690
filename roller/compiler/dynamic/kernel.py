"""VaryingKernel: a few kernels for one dynamic size, and a table from extent to kernel."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from roller.artifact import Constant, KernelArtifact
from roller.backends.cpu.launcher import CpuKernel
from roller.compiler.compiled_kernel import CompiledKernel
from roller.compiler.dynamic.dynamic_axes import GENERALISATION_EXTENTS
from roller.compiler.dynamic.dynamic_range import DynamicRange
from roller.compiler.dynamic.dynamic_size_box import SizeBox, Sizes
from roller.compiler.dynamic.loaded_kernel import KEY
from roller.compiler.dynamic.operator_session import start_operator_session
from roller.compiler.dynamic.program_families import ProgramFamily, price_families_at_extents
from roller.errors import LaunchError, counted
from roller.hardware import DeviceSpec
from roller.templates import price_with_templates
from roller.tile import RProgram
from roller_runtime.core.display import one_line_repr
from roller_runtime.core.fork_safe_lock import ForkSafeLock
from roller_runtime.core.kernel_argument import Argument
from roller_runtime.core.size_formulas import Atom, Formula
from roller_runtime.core.validation import parse_call_sizes
from roller_runtime.plan.proven_kernels import ProvenKernels
from roller_runtime.session.range_session import PROOFS, RangeSession
from roller_runtime.session.save_ranges import ProvenChooser

#: Maximum number of extents with cached launchers; the oldest is evicted.
_MOST_READY = 1024


@dataclass(frozen=True)
class KernelVariant:
    """A kernel built for the largest extent, which supports all extents from :attr:`ProgramFamily.rows` up."""

    family: ProgramFamily
    artifact: KernelArtifact

    def at(self, varies: DynamicRange, extent: int) -> KernelArtifact:
        """Return the artifact with the shapes at an extent and the same library."""
        program = self.family.at(extent)
        shapes = {t.name: t.shape for t in program.expr.tensors.values()}

        def argument(a: Argument) -> Argument:
            return replace(a, shape=shapes[a.name]) if a.name in shapes and a.role != "panel" else a

        arguments = tuple(map(argument, self.artifact.arguments))
        return replace(self.artifact, expression=varies.at(extent), program=program, arguments=arguments)


@dataclass(frozen=True)
class Piece:
    """A range of consecutive extents with the same kernel.

    Parameters
    ----------
    low, high
        Smallest and largest extent, in elements.
    program
        The kernel's program at ``high``.
    regret
        Maximum, over the priced extents in the range, of the predicted time divided by that of the best program, minus
        one; 0 if no extent in it was priced.
    """

    low: int
    high: int
    program: RProgram
    regret: float


class VaryingKernel(CompiledKernel):
    """Kernels of one expression for all extents of one size; its properties are those at the largest extent.

    Parameters
    ----------
    varies
        The size and its range.
    variants
        The kernels.
    table
        Index of the kernel for each extent, starting with the smallest extent.
    regrets
        Predicted time divided by that of the best program, minus one, by priced extent.
    spec
        The device.
    doubt
        Reason why the choice may be wrong, if the timing was disturbed; otherwise empty.
    """

    def __init__(
        self, varies: DynamicRange, variants: Sequence[KernelVariant], table: np.ndarray, regrets: dict[int, float],
        spec: DeviceSpec, doubt: str = "",
    ) -> None:  # fmt: skip
        self.varies, self.variants, self.spec = varies, tuple(variants), spec
        self._table, self._regrets, self._doubt = table, regrets, doubt
        self._loaded: dict[int, CpuKernel] = {}
        self._ready: dict[int, CpuKernel] = {}
        self._loading = ForkSafeLock()
        position, self._dim = varies.place
        held = {c.position for c in self.variants[0].artifact.constants}
        self._input = position - sum(n < position for n in held)
        super().__init__(self._artifact(varies.high))

    @property
    def doubt(self) -> str:
        """Reason why the choice may be wrong, if the timing was disturbed; otherwise empty."""
        return self._doubt

    def holding(self, constants: tuple[Constant, ...]) -> CompiledKernel:
        """Return the kernels bound to the values of their constant inputs."""
        if not constants:
            return self
        variants = [KernelVariant(v.family, replace(v.artifact, constants=constants)) for v in self.variants]
        return VaryingKernel(self.varies, variants, self._table, self._regrets, self.spec, self._doubt)

    def save(self, path: str | os.PathLike[str], *, sources: bool = True, proofs: int | None = PROOFS) -> Path:
        """Write a folder for :func:`roller.load`, atomically; the loaded kernel needs no compiler.

        :func:`roller.load_model` and :func:`roller_runtime.load_model` load the folder too, as a session with named
        inputs.

        Parameters
        ----------
        path
            Folder that does not exist or is empty.
        sources
            Whether to include the programs, estimates and sources of the kernels, for inspection.
        proofs
            Without effect: the extent is a variable in the code of these kernels, so there is nothing to prove for new
            ones, and the folder has the kernel of every extent.

        Raises
        ------
        ArtifactError
            If the folder is not empty or cannot be written.
        """
        return self._session().save(path, sources=sources, proofs=proofs)

    def _session(self) -> RangeSession:
        varies, name = self.varies, self.varies.size.name

        def artifact_at(variant: KernelVariant, sizes: Sizes) -> KernelArtifact:
            return variant.at(varies, sizes[name])

        return start_operator_session(
            lambda p: varies.at(p[name]), [{name: n} for n in GENERALISATION_EXTENTS], SizeBox(self.ranges),
            [partial(artifact_at, v) for v in self.variants],
            lambda kernels: ProvenChooser.of(varies.expr.name, {KEY: self._kernel_table()}, kernels),
            self.spec.units, self._doubt,
        )  # fmt: skip

    def _kernel_table(self) -> ProvenKernels:
        """Return the kernel of each extent in the form that sessions read."""
        families, extents = [v.family for v in self.variants], sorted(self._regrets)
        seconds = price_families_at_extents(families, extents, self.spec).T.tolist()
        return ProvenKernels.of(
            self.ranges, {}, {n: Formula(0, ((1, (Atom((n,)),)),)) for n in self.ranges},
            {(extent,): int(k) for extent, k in enumerate(self._table, self.varies.low)}, is_complete=True,
            minimums=[() for _ in families], predicted={(x,): s for x, s in zip(extents, seconds, strict=True)},
        )  # fmt: skip

    def __call__(self, *arrays: Any, out: Any = None, **options: Any) -> Any:
        """Run the kernel for the arrays' extent.

        Parameters
        ----------
        *arrays
            One array per non-constant input, in call order, all with the same extent of the dynamic size.
        out, **options
            See :class:`~roller.compiler.compiled_kernel.CompiledKernel`.

        Raises
        ------
        LaunchError
            If the extent is outside the range or an array does not fit the others.
        """
        try:
            kernel = self._ready[arrays[self._input].shape[self._dim]]
        except (KeyError, IndexError, AttributeError):
            kernel = self._prepared(self._extent_of_arrays(arrays))
        if out is None and not options:  # fast path: keyword arguments cost more than the lookup
            return kernel(*arrays)
        return kernel(*arrays, out=out, **options)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Smallest and largest extents of the dynamic axis, keyed by its name."""
        return {self.varies.size.name: (self.varies.low, self.varies.high)}

    @property
    def kernels(self) -> tuple[KernelVariant, ...]:
        """The kernels."""
        return self.variants

    def at(self, *extents: int, **sizes: int) -> CompiledKernel:
        """Return the kernel for one extent, given by position or by the name of its axis, without compiling anything.

        Raises
        ------
        LaunchError
            If the extent is missing, repeated, misnamed, not an integer, or outside the range.
        """
        (size,) = parse_call_sizes(self.varies.expr.name, self.ranges, extents, sizes).values()
        return CompiledKernel(self._artifact(size), launcher=lambda _: self._prepared(size))

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Ranges of extents with the same kernel, each with its predicted regret."""
        ends = [0, *(int(n) + 1 for n in np.flatnonzero(np.diff(self._table))), len(self._table)]
        found = []
        for first, end in itertools.pairwise(ends):
            low, high = self.varies.low + first, self.varies.low + end - 1
            regret = max((r for x, r in self._regrets.items() if low <= x <= high), default=0.0)
            found.append(Piece(low, high, self.variants[self._table[first]].family.at(high), regret))
        return tuple(found)

    def _artifact(self, extent: int) -> KernelArtifact:
        artifact = self._variant_for_extent(extent).at(self.varies, extent)
        return replace(artifact, estimate=price_with_templates.estimate_program(artifact.program, self.spec).to_dict())

    def _load(self) -> CpuKernel:
        return self._prepared(self.varies.high)

    def _extent_of_arrays(self, arrays: Sequence[Any]) -> int:
        """Return the extent of a call's arrays, or the smallest for malformed arrays, which the kernel then refuses."""
        if len(arrays) <= self._input:
            return self.varies.low
        array = arrays[self._input]
        if not hasattr(array, "shape") and hasattr(array, "__dlpack__"):
            array = np.from_dlpack(array)
        shape = np.shape(array) if not hasattr(array, "shape") else array.shape
        return int(shape[self._dim]) if len(shape) > self._dim else self.varies.low

    def _variant_for_extent(self, extent: int) -> KernelVariant:
        if not self.varies.low <= extent <= self.varies.high:
            raise LaunchError(
                f"{self.varies.expr.name}: expected an extent of '{self.varies.size.name}' from {self.varies.low} to "
                f"{self.varies.high}, got {extent}. Compile for a range that has it."
            )
        return self.variants[int(self._table[extent - self.varies.low])]

    def _prepared(self, extent: int) -> CpuKernel:
        variant = self._variant_for_extent(extent)
        with self._loading:
            found = self._ready.get(extent)
            if found is None:
                number = self.variants.index(variant)
                if number not in self._loaded:
                    self._loaded[number] = CpuKernel(variant.artifact)
                if len(self._ready) >= _MOST_READY:
                    del self._ready[next(iter(self._ready))]
                found = self._ready[extent] = self._loaded[number].reshaped(variant.at(self.varies, extent))
        return found

    def __repr__(self) -> str:
        v = self.varies
        what = f"{v.expr.name} with {v.size.name} from {v.low} to {v.high} on {self.spec.name}"
        return one_line_repr("VaryingKernel", f"{what}: {counted(len(self.variants), 'kernel')}")
