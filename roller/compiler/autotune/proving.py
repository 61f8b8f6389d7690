"""Kernels for a device that is not here, proved on the emulator before anybody takes them for right.

A proof is a fact about a kernel's source: it is noted in the artifact's ``build`` and travels with it, so that a kernel
is proved once, whoever asks again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from roller.artifact import KernelArtifact
from roller.core.processor import usable_processors
from roller.core.validation import flag, number
from roller.errors import EmulationError, RollerError

if TYPE_CHECKING:
    import numpy as np

    from roller.compiler.autotune.scaled import Lower
    from roller.emulator import Proof
    from roller.expr import TensorExpr

#: Seconds of each processor that one kernel may run for unless said otherwise, besides what g++ takes to build it.
PROVE_S = 20.0
#: Seconds of each processor for all proofs of a bundle or a saved model together, unless said otherwise.
PROVE_ALL_S = 120.0
#: Keys of an artifact's ``build``: what is known, and the seconds it was tried for.
PROVED, _TRIED_S = "proved", "prove_s"
#: What records say of a kernel that was run, followed by what of it where that was not all.
EMULATED = "emulated"
#: Seconds of one processor per point of an expression in all orders, roughly: whether to try all of a kernel at once.
_POINTS = 3 / 2e7
#: Inputs that are filled and copied in a second (bytes).
_BYTES_PER_S = 64e6
#: Why a kernel was not tried.
USED_UP = "the seconds for proofs were used up"
#: Less is not worth building a kernel for.
LEAST_S = 0.05


@dataclass(frozen=True)
class Verdict:
    """What became of a kernel that was to be proved.

    Parameters
    ----------
    proved
        ``"emulated"``, with what was run where that was not all, or ``"not proved (reason)"``.
    wrong
        What is wrong with it; empty where nothing was found, also where time ran out.
    took_s
        Seconds of processors that finding out took, g++ included.
    """

    proved: str
    wrong: str = ""
    took_s: float = field(default=0.0, compare=False)


def processor_s() -> float:
    """Return the seconds of processors that this process and the ended processes it started have taken."""
    return sum(os.times()[:4])


def missing() -> str:
    """Return why nothing can be proved on this machine; empty where it can."""
    from roller.emulator.library import compiler

    try:
        compiler(os.environ.get("CXX") or "g++")
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
) -> Verdict:
    """Prove a kernel on the emulator, as far as seconds allow.

    All of it runs where that is predicted to fit. Else a smaller kernel of the same structure does
    (:mod:`roller.compiler.autotune.scaled`), and blocks of the kernel itself: the first
    shows every kind of tile, the second every constant as it will be.

    Examples
    --------
    >>> import roller
    >>> kernel = roller.compile(roller.ops.matmul(64, 64, 64), device="v100", top_k=1, cache=False)
    >>> prove(kernel.artifact).proved
    'emulated'
    """
    start = processor_s()
    verdict = _proved(artifact, max(seconds, LEAST_S), lower, seed, workers)
    return replace(verdict, took_s=processor_s() - start)


def _proved(artifact: KernelArtifact, seconds: float, lower: Lower | None, seed: int, workers: int | None) -> Verdict:
    left_s = seconds
    whole_s = _POINTS * sum(s.points for s in artifact.expression.stages) / (workers or usable_processors())
    known, notes = list[str](), list[str]()
    if lower is not None and whole_s > seconds:
        verdict, ran_s = _scaled(artifact, lower, seconds / 2, seed, workers)
        if verdict.wrong:
            return verdict
        (known if verdict.proved.startswith(EMULATED) else notes).append(_inner(verdict.proved))
        left_s -= ran_s
        if left_s * _BYTES_PER_S < sum(t.nbytes for t in artifact.expression.inputs) or left_s < LEAST_S:
            return _together(known, notes or ["its arrays are too large for the seconds that are left"])
    verdict, _ = _emulated(artifact, left_s, seed, workers)
    if verdict.wrong or verdict.proved == EMULATED:
        return verdict
    (known if verdict.proved.startswith(EMULATED) else notes).append(_inner(verdict.proved))
    return _together(known, notes)


def _emulated(artifact: KernelArtifact, seconds: float, seed: int, workers: int | None) -> tuple[Verdict, float]:
    """Prove a kernel by itself; return also the seconds it ran for."""
    from roller import emulator

    try:
        proof = emulator.prove(artifact, budget_s=seconds, seed=seed, workers=workers, compare_at=_compare)
    except EmulationError as err:
        return Verdict(f"not proved ({str(err).splitlines()[0].rstrip('.')})"), 0.0
    except MemoryError:
        return Verdict("not proved (not enough memory)"), 0.0
    return Verdict(proof.proved, "" if proof.ok else _reason(proof)), proof.spent_s


def _scaled(
    artifact: KernelArtifact, lower: Lower, seconds: float, seed: int, workers: int | None
) -> tuple[Verdict, float]:
    """Prove a smaller kernel; one of another structure that is wrong says nothing of this one."""
    from roller.compiler.autotune.scaled import scaled

    found = scaled(artifact, lower)
    if found is None:
        return Verdict("not proved (no axis of it may shrink)"), 0.0
    verdict, ran_s = _emulated(found.artifact, seconds, seed, workers)
    if verdict.wrong:
        text = f"{found}: {verdict.wrong}"
        return Verdict(f"not proved ({text})", text if found.same else ""), ran_s
    if not verdict.proved.startswith(EMULATED):
        return Verdict(f"not proved ({found}: {_inner(verdict.proved)})"), ran_s
    more = f", {_inner(verdict.proved)}" if verdict.proved != EMULATED else ""
    return Verdict(f"{EMULATED}: {found}{more}"), ran_s


def _together(known: Sequence[str], notes: Sequence[str]) -> Verdict:
    return Verdict(f"{EMULATED}: {'; '.join(known)}" if known else f"not proved ({'; '.join(notes)})")


def _inner(proved: str) -> str:
    """Return what a text says besides that it is one.

    Examples
    --------
    >>> _inner("emulated: 8 of 9 blocks"), _inner("not proved (too large)")
    ('8 of 9 blocks', 'too large')
    """
    if proved.startswith("not proved ("):
        return proved[len("not proved (") : -1]
    return proved.removeprefix(f"{EMULATED}: ")


class Share:
    """Proves kernels one after another while its seconds last.

    Parameters
    ----------
    seconds
        Of a processor, for all of them, what g++ takes included.
    lower
        As of :func:`prove`.
    """

    def __init__(self, seconds: float, lower: Lower | None = None) -> None:
        self.seconds, self._lower, self._spent_s = seconds, lower, 0.0

    def __call__(self, name: str, artifact: KernelArtifact) -> tuple[KernelArtifact, str]:
        """Return the kernel with what is known of it, and what is wrong with it."""
        del name
        left_s = min(self.seconds - self._spent_s, PROVE_S)
        if left_s < LEAST_S:
            return noted(artifact, Verdict(f"not proved ({USED_UP})"), 0.0), ""
        # One thread: what calls this is one process of many.
        verdict = prove(artifact, left_s, lower=self._lower, workers=1)
        self._spent_s += verdict.took_s
        return noted(artifact, verdict, left_s), verdict.wrong


def is_proved(artifact: KernelArtifact, seconds: float) -> bool:
    """Whether proving an artifact for so long says no more than is known: all of it ran, or it was tried for as long.

    What ran of it in part, or of a smaller kernel, is as good as the seconds it was given: more show more of it.
    """
    if artifact.measured_s is not None:
        return True
    known = proved_of(artifact)
    return known == EMULATED or (bool(known) and float(artifact.build.get(_TRIED_S, 0.0)) >= seconds)


def noted(artifact: KernelArtifact, verdict: Verdict, seconds: float) -> KernelArtifact:
    """Return the artifact with what is known of it."""
    return replace(artifact, build={**artifact.build, PROVED: verdict.proved, _TRIED_S: seconds})


def proved_of(artifact: KernelArtifact) -> str:
    """Return what is known of an artifact, for records: empty where nobody asked."""
    return str(artifact.build.get(PROVED, ""))


def seconds_of(prove: bool, prove_s: float | None, device_is_here: bool, device: str) -> float:
    """Return the seconds of a proof that is asked for, 0 for none."""
    prove = flag(prove, "prove", remedy="Give seconds as prove_s.")
    seconds = PROVE_S
    if prove_s is not None:
        seconds = number(prove_s, "prove_s", above=0.0, expected="seconds above 0, or None")
    if not prove:
        if prove_s is not None:
            raise RollerError("prove_s: expected none without prove=True. Add it, or leave prove_s away.")
        return 0.0
    if device_is_here:
        raise RollerError(f"prove: expected a device that is not here, got '{device}', which checks what it runs. "
                          "Leave it out.")  # fmt: skip
    why = missing()
    if why:
        raise EmulationError(why)
    return seconds


def _compare(
    expression: TensorExpr,
    arrays: Sequence[np.ndarray],
    points: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
) -> str:
    from roller.runtime.check import Oracle

    return Oracle(expression, arrays, points=points).check_values(values).message


def _reason(proof: Proof) -> str:
    order, text = proof.failures[0]
    return f"emulated, {order} order: {text}"
