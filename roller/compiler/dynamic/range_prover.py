"""Chooses the kernels of a model with dynamic sizes, and proves them correct, in a process that has the compiler."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from roller.compiler.dynamic.compile_kernels_for_all_sizes import SymbolicKernels
from roller.compiler.dynamic.dynamic_size_box import SizeBox
from roller.compiler.dynamic.kernel_choice import PricedKernel
from roller.compiler.dynamic.prove_all_sizes import prove_all_sizes, table_of_known_results
from roller.hardware import DeviceSpec
from roller_runtime.plan.proven_kernels import ProvenKernels
from roller_runtime.session.range_plan import Sizes, variant_key


@dataclass(frozen=True)
class RangeProver:
    """Proves kernels when a call first needs them; see :class:`roller_runtime.session.range_plan.KernelChooser`.

    Parameters
    ----------
    kernels
        The kernels of each operator.
    box
        The model's sizes.
    without_sizes
        Predicted seconds of the only kernel of each operator that depends on no size, by key.
    """

    kernels: Mapping[str, SymbolicKernels]
    box: SizeBox
    without_sizes: Mapping[str, float] = field(default_factory=dict)

    def choose(self, key: str, sizes: Sizes) -> int:
        """Return the position of the fastest kernel that is proven correct at the sizes."""
        return 0 if key in self.without_sizes else self.kernels[key].best(sizes)

    def predicted(self, key: str, number: int, sizes: Sizes) -> float:
        """Return the predicted time of a kernel, in seconds."""
        known = self.without_sizes.get(key)
        return self.kernels[key].predicted(number, sizes) if known is None else known

    def prove_all(self, proofs: int | None) -> Mapping[str, ProvenKernels]:
        """Prove kernels at all sizes, or at some, and return the results by key."""
        return prove_all_sizes(self.kernels, self.box, proofs) | self._tables_without_sizes

    def known_results(self) -> Mapping[str, ProvenKernels]:
        """Return the results of the proofs so far by key."""
        known = {key: table_of_known_results(several) for key, several in self.kernels.items()}
        return known | self._tables_without_sizes

    @property
    def _tables_without_sizes(self) -> dict[str, ProvenKernels]:
        return {
            key: ProvenKernels.of({}, {}, {}, {(): 0}, is_complete=True, minimums=[()], predicted={(): [seconds]})
            for key, seconds in self.without_sizes.items()
        }

    def to_bytes(self) -> bytes:
        """Return the prover without the kernels' libraries, for :meth:`from_bytes`."""
        found = {key: (several.own, tuple(map(_without_library, several.priced)), several.doubt)
                 for key, several in self.kernels.items()}  # fmt: skip
        return pickle.dumps((found, self.box, dict(self.without_sizes)))

    @classmethod
    def from_bytes(cls, data: bytes, spec: DeviceSpec, libraries: Mapping[str, bytes]) -> RangeProver:
        """Rebuild from trusted bytes and the libraries by variant key."""
        found: Any
        found, box, without_sizes = pickle.loads(data)
        kernels = {}
        for key, (own, priced, doubt) in found.items():
            several = tuple(_with_library(p, libraries[variant_key(key, n)]) for n, p in enumerate(priced))
            kernels[key] = SymbolicKernels(own, several, spec, doubt)
        return cls(kernels, box, without_sizes)


def _without_library(priced: PricedKernel) -> PricedKernel:
    kernel: Any = priced.kernel
    return replace(priced, kernel=replace(kernel, artifact=replace(kernel.artifact, binary=None)))


def _with_library(priced: PricedKernel, library: bytes) -> PricedKernel:
    kernel: Any = priced.kernel
    return replace(priced, kernel=replace(kernel, artifact=replace(kernel.artifact, binary=library)))
