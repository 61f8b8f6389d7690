"""Proofs of a model's kernels for a GPU that is not here: in parallel, the biggest share first, while seconds last."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from roller.artifact import KernelArtifact
from roller.choosing.proving import LEAST_S, PROVE_S, USED_UP, Verdict, is_proved, missing, noted
from roller.emulator.allowance import PATIENCE
from roller.hardware import DeviceSpec
from roller.onnx.tasks import Prove, Task

if TYPE_CHECKING:
    from roller.construction.constructor import Candidate
    from roller.onnx.executors import Results


class Proofs:
    """What is known of the kernels of a batch.

    Parameters
    ----------
    spec
        The GPU.
    seconds
        That all proofs may take together on an idle machine; 0 where nothing is to be proved. A busy one may take
        :data:`PATIENCE` times as long: what is proved should not depend on who else computes.
    kernels, workers
        How many kernels share them, and how many are proved at a time.
    run
        Carries tasks out, in parallel.
    """

    def __init__(
        self, spec: DeviceSpec, seconds: float, kernels: int, workers: int, run: Callable[[Mapping[str, Task]], Results]
    ) -> None:
        self._spec, self._left_s, self._workers, self._run = spec, seconds, workers, run
        self._clock_left_s = PATIENCE * seconds
        self.each_s = min(PROVE_S, seconds * workers / max(1, kernels))
        self._known: dict[str, Verdict] = {}
        self._missing = missing() if seconds else ""

    def __bool__(self) -> bool:
        """Whether kernels are to be proved."""
        return self.each_s > 0

    def enough(self, artifact: KernelArtifact) -> bool:
        """Whether trying again would say no more of a kernel that was kept."""
        return not self or bool(self._missing) or is_proved(artifact, self.each_s)

    def ahead(self, artifacts: Mapping[str, KernelArtifact]) -> None:
        """Prove kernels by candidate id, as long as there is time."""
        todo = {i: a for i, a in artifacts.items() if i not in self._known}
        if not self or self._missing or min(self._left_s, self._clock_left_s) < LEAST_S or not todo:
            return
        start = time.monotonic()
        results = self._run({f"{i}/proved": Prove(a, self._spec, self.each_s) for i, a in todo.items()})
        self._clock_left_s -= time.monotonic() - start
        values = [results[f"{i}/proved"].value for i in todo]
        took_s = [self.each_s if v is None else v.took_s for v in values]
        self._left_s -= max([*took_s, sum(took_s) / max(1, self._workers)])
        for i in todo:
            result = results[f"{i}/proved"]
            lost = f"{result.record.status}: {result.record.reason.partition(chr(10))[0]}"
            self._known[i] = result.value if result.value is not None else Verdict(f"not proved ({lost})")

    def __call__(self, candidate: Candidate, artifact: KernelArtifact) -> tuple[KernelArtifact, Verdict]:
        """Return a kernel with what is known of it."""
        self.ahead({candidate.id: artifact})
        known = self._known.get(candidate.id)
        verdict = known or Verdict(f"not proved ({self._missing.rstrip('.') or USED_UP})")
        return noted(artifact, verdict, self.each_s if known else 0.0), verdict
