"""The parts of a session with dynamic sizes, and the folder that :func:`save_ranges` writes for ``load_model.py``.

In addition to the files of a session for fixed sizes, ``ranges.json`` contains the plan as a function of the sizes and
the results of the proofs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roller_runtime.core.generalized_data import GeneralizedData
from roller_runtime.core.size_formulas import Formula
from roller_runtime.errors import NoCandidateError
from roller_runtime.plan.proven_kernels import ProvenKernels
from roller_runtime.session.cpu_kernel_loading import CpuKernelInterface, LoadedKernel
from roller_runtime.session.model_digest import ModelDigest, unknown_digest
from roller_runtime.session.native_runner import Runner
from roller_runtime.session.packed_constants import Constants
from roller_runtime.session.range_plan import RangeKernel, RangePlan, Sizes, variant_key
from roller_runtime.session.save_session import RUNNER, describe_compilation, save_arrays, save_kernels, write_file
from roller_runtime.storage.verified_container import SAVED, write_container

RANGES, PROVER = "ranges.json", "prover.pickle"


@dataclass(frozen=True)
class RangeParts:
    """All parts of a session with dynamic sizes.

    Parameters
    ----------
    kernels
        Loaded kernels by variant key.
    constants
        Constants as kernels read them.
    cores
        Number of threads per call, including the calling thread.
    doubt
        Reason why other programs may have disturbed the choice of kernels; empty if there is none.
    artifacts
        Programs, estimates and sources of kernels by variant key; may be empty.
    model_digest
        Function that returns the digest of the model's file.
    """

    plan: RangePlan
    kernels: Mapping[str, LoadedKernel]
    constants: Constants
    cores: int
    runner: Runner
    doubt: str = ""
    artifacts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    model_digest: ModelDigest = unknown_digest


def save_ranges(
    parts: RangeParts, target: Path, proven: Mapping[str, ProvenKernels], *, sources: bool,
    prover: bytes | None = None, decoder: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Write a folder that :func:`roller_runtime.load_model` loads.

    Parameters
    ----------
    proven
        Results of proofs by key.
    prover
        Data for further proofs, for the cache.
    decoder
        Result of :meth:`roller_runtime.session.decoder_inputs.DecoderInputs.to_dict`, for a decoder.
    """
    with write_container(target) as work:
        ranges = json.dumps(_plan_to_json(parts.plan, proven), separators=(",", ":"))
        body = {
            **describe_compilation(parts.kernels, parts.cores, parts.model_digest),
            "ranges": {n: [*ends, parts.plan.steps.get(n, 1)] for n, ends in parts.plan.ranges.items()},
            "doubt": parts.doubt,
            "plan": write_file(work, RANGES, ranges.encode()),
            "kernels": save_kernels(work, parts.kernels, parts.artifacts if sources else {}),
            "arrays": save_arrays(work, parts.constants)[0],
            "runner": write_file(work, RUNNER, parts.runner.image),
            "prover": None if prover is None else write_file(work, PROVER, prover),
            "decoder": decoder,
        }
        work.write_manifest(SAVED, body)
    return target


def _plan_to_json(plan: RangePlan, proven: Mapping[str, ProvenKernels]) -> dict[str, Any]:
    return {
        "general": plan.general.to_json(),
        "name": plan.name,
        "dtypes": dict(plan.dtypes),
        "arena_bytes": plan.arena_bytes,
        "ends": {n: list(ends) for n, ends in plan.ends.items()},
        "steps": dict(plan.steps),
        "derived": {n: f.to_list() for n, f in plan.derived.items()},
        "inputs": {n: list(dims) for n, dims in plan.inputs.items()},
        "outputs": {n: list(dims) for n, dims in plan.outputs.items()},
        "shapes": {key: [k.shapes.to_json() for k in several] for key, several in plan.kernels.items()},
        "proven": {key: table.to_json() for key, table in proven.items()},
    }


def plan_from_json(data: Mapping[str, Any], code: Mapping[str, CpuKernelInterface]) -> RangePlan:
    """Rebuild a plan from ``ranges.json`` and the interfaces of all kernels by variant key.

    Raises
    ------
    LookupError, TypeError, ValueError
        If the data are malformed.
    """
    proven = {str(key): ProvenKernels.from_json(table) for key, table in data["proven"].items()}
    kernels = {
        str(key): tuple(
            RangeKernel(code[variant_key(key, n)], GeneralizedData.from_json(shapes), b"", "", proven[str(key)])
            for n, shapes in enumerate(several)
        )
        for key, several in data["shapes"].items()
    }
    name = str(data["name"])
    if proven.keys() != kernels.keys() or any(proven[k].count > len(several) for k, several in kernels.items()):
        raise ValueError("proven kernels")

    return RangePlan(
        GeneralizedData.from_json(data["general"]), name, {str(n): str(d) for n, d in data["dtypes"].items()},
        int(data["arena_bytes"]), {str(n): (int(low), int(high)) for n, (low, high) in data["ends"].items()},
        {str(n): Formula.from_list(f) for n, f in data["derived"].items()},
        {str(n): tuple(dims) for n, dims in data["inputs"].items()},
        {str(n): tuple(dims) for n, dims in data["outputs"].items()},
        kernels, ProvenChooser.of(name, proven, kernels),
        {str(n): int(step) for n, step in data["steps"].items()},
    )  # fmt: skip


@dataclass(frozen=True)
class ProvenChooser:
    """Chooses kernels by the results of proofs; see :class:`roller_runtime.session.range_plan.KernelChooser`.

    Parameters
    ----------
    model
        Name of the model.
    proven, names
        Results of proofs, and names of the operators, by key.
    """

    model: str
    proven: Mapping[str, ProvenKernels]
    names: Mapping[str, str]

    @classmethod
    def of(
        cls, model: str, proven: Mapping[str, ProvenKernels], kernels: Mapping[str, Sequence[RangeKernel]]
    ) -> ProvenChooser:  # fmt: skip
        """Return the chooser for the kernels of a plan."""
        return cls(model, proven, {key: several[0].code.name for key, several in kernels.items()})

    def choose(self, key: str, sizes: Sizes) -> int:
        """Return the position of the kernel to run; raise an error if none is proven correct."""
        found = self.proven[key].kernel_at(sizes)
        if found is None:
            own = {n: f.at(sizes) for n, f in self.proven[key].formulas.items()}
            raise NoCandidateError(
                f"{self.model}: shapes: expected a kernel of '{self.names[key]}' that was proven at {own}, got none. "
                "Compile for these shapes."
            )
        return found

    def predicted(self, key: str, number: int, sizes: Sizes) -> float:
        """Return the predicted time of a kernel at the nearest sample sizes, in seconds."""
        return self.proven[key].predicted_at(number, sizes)

    def known_results(self) -> Mapping[str, ProvenKernels]:
        """Return the results by key."""
        return self.proven

    def prove_all(self, proofs: int | None) -> Mapping[str, ProvenKernels]:
        """Return the results, which cannot be extended without a compiler."""
        del proofs
        return self.proven
