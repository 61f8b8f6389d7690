"""Proves kernels for absent devices correct by running them on the emulator."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from roller.artifact import KernelArtifact
from roller.errors import EmulationError, RollerError
from roller_runtime.core.processor_features_and_count import usable_processors
from roller_runtime.core.validation import validate_flag, validate_number

if TYPE_CHECKING:
    import numpy as np

    from roller.compiler.autotune.scaled_kernel import Lower
    from roller.emulator import Proof
    from roller.expr import TensorExpr

#: Default budget per kernel, in seconds on each processor, without the time that g++ takes.
PROVE_S = 20.0
#: Default budget for all proofs of a bundle or a saved model, in seconds on each processor.
PROVE_ALL_S = 120.0
#: Keys of an artifact's ``build`` for the result of the proof and for its budget in seconds.
PROVED, _TRIED_S = "proved", "prove_s"
#: Prefix of the result for an emulated kernel; the part that ran follows unless the whole kernel ran.
EMULATED = "emulated"
#: Estimated processor seconds per point over all thread orders; they decide whether the whole kernel fits the budget.
_POINTS = 3 / 2e7
#: Rate at which inputs are filled and copied, in bytes per second.
_BYTES_PER_S = 64e6
#: Reason given for a kernel whose proof was not tried.
USED_UP = "the seconds for proofs were used up"
#: Smallest budget, in seconds, for which a kernel is worth building.
LEAST_S = 0.05


@dataclass(frozen=True)
class ProofVerdict:
    """Result of an attempt to prove a kernel correct."""

    proved: str  #: ``"emulated"``, with the part that ran if not all did, or ``"not proved (reason)"``
    wrong: str = ""  #: The error found; empty if none was found, also if time ran out
    took_s: float = field(default=0.0, compare=False)  #: Processor seconds spent, including g++


def used_processor_seconds() -> float:
    """Return the processor time, in seconds, that this process and its finished children have used."""
    return sum(os.times()[:4])


def missing_emulator_reason() -> str:
    """Return the reason why this machine cannot prove kernels correct; empty if it can."""
    from roller.emulator.build_library import compiler_path_and_version

    try:
        compiler_path_and_version(os.environ.get("CXX") or "g++")
    except EmulationError as err:
        return str(err)
    return ""


def prove(
    artifact: KernelArtifact,
    seconds: float = PROVE_S,
    *,
    lower: Lower | None = None,
    seed: int = 0,
    workers: int | None = None,
) -> ProofVerdict:
    """Prove a kernel correct on the emulator within a processor-time budget.

    >>> import roller
    >>> kernel = roller.compile(roller.ops.matmul(64, 64, 64), device="v100", top_k=1, cache=False)
    >>> prove(kernel.artifact).proved
    'emulated'
    """
    # The whole kernel runs if predicted to fit. Else a smaller kernel of the same structure runs, which has every kind
    # of tile, and then blocks of the kernel itself, which have its own constants.
    start = used_processor_seconds()
    verdict = _prove_within(artifact, max(seconds, LEAST_S), lower, seed, workers)
    return replace(verdict, took_s=used_processor_seconds() - start)


def _prove_within(
    artifact: KernelArtifact, seconds: float, lower: Lower | None, seed: int, workers: int | None
) -> ProofVerdict:
    left_s = seconds
    whole_s = _POINTS * sum(s.points for s in artifact.expression.stages) / (workers or usable_processors())
    known, notes = list[str](), list[str]()
    if lower is not None and whole_s > seconds:
        verdict, ran_s = _prove_scaled_kernel(artifact, lower, seconds / 2, seed, workers)
        if verdict.wrong:
            return verdict
        (known if verdict.proved.startswith(EMULATED) else notes).append(_detail_of_proof_text(verdict.proved))
        left_s -= ran_s
        if left_s * _BYTES_PER_S < sum(t.nbytes for t in artifact.expression.inputs) or left_s < LEAST_S:
            return _verdict_from_texts(known, notes or ["its arrays are too large for the seconds that are left"])
    verdict, _ = _emulate_kernel(artifact, left_s, seed, workers)
    if verdict.wrong or verdict.proved == EMULATED:
        return verdict
    (known if verdict.proved.startswith(EMULATED) else notes).append(_detail_of_proof_text(verdict.proved))
    return _verdict_from_texts(known, notes)


def _emulate_kernel(
    artifact: KernelArtifact, seconds: float, seed: int, workers: int | None
) -> tuple[ProofVerdict, float]:
    """Emulate a kernel; return the verdict and the number of seconds for which it ran."""
    from roller import emulator

    try:
        proof = emulator.prove(
            artifact, budget_s=seconds, seed=seed, workers=workers, compare_at=_difference_from_reference
        )
    except EmulationError as err:
        return ProofVerdict(f"not proved ({str(err).splitlines()[0].rstrip('.')})"), 0.0
    except MemoryError:
        return ProofVerdict("not proved (not enough memory)"), 0.0
    return ProofVerdict(proof.proved, "" if proof.ok else _reason_of_failed_proof(proof)), proof.spent_s


def _prove_scaled_kernel(
    artifact: KernelArtifact, lower: Lower, seconds: float, seed: int, workers: int | None
) -> tuple[ProofVerdict, float]:
    """Prove a smaller kernel correct; an error in one with a different structure says nothing about the original."""
    from roller.compiler.autotune.scaled_kernel import find_scaled_kernel

    found = find_scaled_kernel(artifact, lower)
    if found is None:
        return ProofVerdict("not proved (no axis of it may shrink)"), 0.0
    verdict, ran_s = _emulate_kernel(found.artifact, seconds, seed, workers)
    if verdict.wrong:
        text = f"{found}: {verdict.wrong}"
        return ProofVerdict(f"not proved ({text})", text if found.same else ""), ran_s
    if not verdict.proved.startswith(EMULATED):
        return ProofVerdict(f"not proved ({found}: {_detail_of_proof_text(verdict.proved)})"), ran_s
    more = f", {_detail_of_proof_text(verdict.proved)}" if verdict.proved != EMULATED else ""
    return ProofVerdict(f"{EMULATED}: {found}{more}"), ran_s


def _verdict_from_texts(known: Sequence[str], notes: Sequence[str]) -> ProofVerdict:
    return ProofVerdict(f"{EMULATED}: {'; '.join(known)}" if known else f"not proved ({'; '.join(notes)})")


def _detail_of_proof_text(proved: str) -> str:
    """Return the detail from a text about a proof.

    >>> _detail_of_proof_text("emulated: 8 of 9 blocks"), _detail_of_proof_text("not proved (too large)")
    ('8 of 9 blocks', 'too large')
    """
    if proved.startswith("not proved ("):
        return proved[len("not proved (") : -1]
    return proved.removeprefix(f"{EMULATED}: ")


class ProofBudget:
    """Proves kernels correct, one after another, within ``seconds`` of processor time in total, including g++."""

    def __init__(self, seconds: float, lower: Lower | None = None) -> None:
        self.seconds, self._lower, self._spent_s = seconds, lower, 0.0

    def __call__(self, name: str, artifact: KernelArtifact) -> tuple[KernelArtifact, str]:
        """Prove a kernel correct; return it with the result stored, and the error found (empty if none)."""
        del name
        left_s = min(self.seconds - self._spent_s, PROVE_S)
        if left_s < LEAST_S:
            return with_proof_verdict(artifact, ProofVerdict(f"not proved ({USED_UP})"), 0.0), ""
        # One thread: the caller is one process of many.
        verdict = prove(artifact, left_s, lower=self._lower, workers=1)
        self._spent_s += verdict.took_s
        return with_proof_verdict(artifact, verdict, left_s), verdict.wrong


def is_proof_exhausted(artifact: KernelArtifact, seconds: float) -> bool:
    """Return whether ``seconds`` more add nothing: the kernel was timed, proven correct, or tried for as long."""
    if artifact.measured_s is not None:
        return True
    known = stored_proof_text(artifact)
    return known == EMULATED or (bool(known) and float(artifact.build.get(_TRIED_S, 0.0)) >= seconds)


def with_proof_verdict(artifact: KernelArtifact, verdict: ProofVerdict, seconds: float) -> KernelArtifact:
    """Return the artifact with the verdict stored in ``build``."""
    return replace(artifact, build={**artifact.build, PROVED: verdict.proved, _TRIED_S: seconds})


def stored_proof_text(artifact: KernelArtifact) -> str:
    """Return the stored result of a proof; empty if there is none."""
    return str(artifact.build.get(PROVED, ""))


def proof_budget_s(prove: bool, prove_s: float | None, device_is_here: bool, device: str) -> float:
    """Return the budget of a requested proof in seconds, or 0 if none is requested."""
    prove = validate_flag(prove, "prove", remedy="Give seconds as prove_s.")
    seconds = PROVE_S
    if prove_s is not None:
        seconds = validate_number(prove_s, "prove_s", above=0.0, expected="seconds above 0, or None")
    if not prove:
        if prove_s is not None:
            raise RollerError("prove_s: expected none without prove=True. Add it, or leave prove_s away.")
        return 0.0
    if device_is_here:
        raise RollerError(f"prove: expected a device that is not here, got '{device}', which checks what it runs. "
                          "Leave it out.")  # fmt: skip
    why = missing_emulator_reason()
    if why:
        raise EmulationError(why)
    return seconds


def _difference_from_reference(
    expression: TensorExpr,
    arrays: Sequence[np.ndarray],
    points: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
) -> str:
    from roller.runtime.check import Oracle

    return Oracle(expression, arrays, points=points).check_compared_elements(values).message


def _reason_of_failed_proof(proof: Proof) -> str:
    order, text = proof.failures[0]
    return f"emulated, {order} order: {text}"
