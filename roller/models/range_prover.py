"""Chooses the kernels of a model with dynamic sizes, and proves them correct, in a process that has the compiler."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from roller.compiler.dynamic.compile_kernels_for_all_sizes import SymbolicKernels
from roller.compiler.dynamic.dynamic_size_box import SizeBox
from roller.compiler.dynamic.kernel_choice import PricedKernel
from roller.compiler.dynamic.prove_all_sizes import prove_all_sizes, table_of_known_results
from roller.hardware import DeviceSpec
from roller.models.session.range_plan import Sizes, variant_key
from roller.runtime.proven_kernels import ProvenKernels


@dataclass(frozen=True)
class RangeProver:
    """Proves kernels when a call first needs them; see :class:`roller.models.session.range_plan.KernelChooser`.

    Parameters
    ----------
    kernels
        The kernels of each operator.
    box
        The model's sizes.
    """

    kernels: Mapping[str, SymbolicKernels]
    box: SizeBox

    def choose(self, key: str, sizes: Sizes) -> int:
        """Return the position of the fastest kernel that is proven correct at the sizes."""
        return self.kernels[key].best(sizes)

    def predicted(self, key: str, number: int, sizes: Sizes) -> float:
        """Return the predicted time of a kernel, in seconds."""
        return self.kernels[key].predicted(number, sizes)

    def prove_all(self, proofs: int | None) -> Mapping[str, ProvenKernels]:
        """Prove kernels at all sizes, or at some, and return the results by key."""
        return prove_all_sizes(self.kernels, self.box, proofs)

    def known_results(self) -> Mapping[str, ProvenKernels]:
        """Return the results of the proofs so far by key."""
        return {key: table_of_known_results(several) for key, several in self.kernels.items()}

    def to_bytes(self) -> bytes:
        """Return the prover without the kernels' libraries, for :meth:`from_bytes`."""
        found = {key: (several.own, tuple(map(_without_library, several.priced)), several.doubt)
                 for key, several in self.kernels.items()}  # fmt: skip
        return pickle.dumps((found, self.box))

    @classmethod
    def from_bytes(cls, data: bytes, spec: DeviceSpec, libraries: Mapping[str, bytes]) -> RangeProver:
        """Rebuild from trusted bytes and the libraries by variant key."""
        found: Any
        found, box = pickle.loads(data)
        kernels = {}
        for key, (own, priced, doubt) in found.items():
            several = tuple(_with_library(p, libraries[variant_key(key, n)]) for n, p in enumerate(priced))
            kernels[key] = SymbolicKernels(own, several, spec, doubt)
        return cls(kernels, box)


def _without_library(priced: PricedKernel) -> PricedKernel:
    kernel: Any = priced.kernel
    return replace(priced, kernel=replace(kernel, artifact=replace(kernel.artifact, binary=None)))


def _with_library(priced: PricedKernel, library: bytes) -> PricedKernel:
    kernel: Any = priced.kernel
    return replace(priced, kernel=replace(kernel, artifact=replace(kernel.artifact, binary=library)))
