"""Runs the plans of probes on a device, case by case, in a process whose death loses only one case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from roller.backends.device_process import DeviceFault, DeviceProcess
from roller.backends.parse_device_names import DeviceHandle, DeviceProperties
from roller.runtime.probe_plan_format import CHECK_STEPS, ProbeCase, ProbePlan
from roller.runtime.resumable_run import run_unknown_items

#: Time limits in seconds for loading a plan (an image and gigabytes of buffers) and for a case.
LOAD_TIMEOUT_S, CASE_TIMEOUT_S = 60.0, 20.0
#: Image for a null device.
NO_IMAGE = b"none"

Result = dict[str, Any]


class PlanRunner:
    """Runs plans on one device, with a time limit per case."""

    def __init__(self, handle: DeviceHandle, case_timeout_s: float = CASE_TIMEOUT_S) -> None:
        self.process = DeviceProcess(handle)
        self._case_timeout_s = case_timeout_s
        self._loaded: tuple[str, int] | None = None

    def properties(self) -> DeviceProperties:
        """Return the properties of the device; see :meth:`DeviceProcess.properties`."""
        return self.process.properties()

    def close(self) -> None:
        """End the device process."""
        self.process.close()

    def run(
        self,
        plan: ProbePlan,
        image: bytes | str,
        known: Mapping[str, Result] | None = None,
        keep: Callable[[str, Result], None] = lambda key, result: None,
        late: Callable[[], bool] = lambda: False,
    ) -> dict[str, Result]:
        """Run the cases of a plan whose results are unknown; return all results."""
        out, cases = dict(known or {}), {case.key: case for case in plan.cases}

        def not_run(key: str, faults: int) -> Result:
            return {"status": "failed", "reason": f"not run: {faults} cases of '{plan.name}' hung or crashed"}

        for key, result in run_unknown_items(
            cases, out, lambda key: self._run_case(plan, image, cases[key]), late=late, not_run=not_run,
            faulty=lambda result: result["status"] in ("timeout", "crashed"),
        ):  # fmt: skip
            out[key] = result
            keep(key, result)
        return out

    def _run_case(self, plan: ProbePlan, image: bytes | str, case: ProbeCase) -> Result:
        if isinstance(image, str):
            return {"status": "failed", "reason": image}
        try:
            self._load(plan, image)
            reply, _ = self.process.request(
                {"op": "probe_run", "case": asdict(case), "check_steps": CHECK_STEPS}, timeout_s=self._case_timeout_s
            )
        except DeviceFault as err:
            return {"status": err.status, "reason": err.reason}
        wrong = _result_error(case, reply.pop("values"), reply.pop("overrun"))
        if wrong:
            return {"status": "wrong", "reason": wrong}
        return {"status": "measured", **{k: v for k, v in reply.items() if k != "arrays"}}

    def _load(self, plan: ProbePlan, image: bytes) -> None:
        if self._loaded == (plan.name, self.process.generation) and self.process.alive:
            return
        inputs = () if self.process.handle.target.pretends else plan.inputs
        blocks, words = [c.block() for c in inputs], [c.words for c in inputs]
        self.process.request(
            {"op": "probe_load", "words": words, "output_words": plan.output_words},
            [np.frombuffer(image, np.uint8), *blocks],
            timeout_s=LOAD_TIMEOUT_S,
        )
        self._loaded = (plan.name, self.process.generation)


def _result_error(case: ProbeCase, values: list[float], overrun: str | None) -> str:
    """Describe the error in a case's results; return an empty text if they are right."""
    if overrun:
        return f"wrote {overrun}"
    for (word, expected), value in zip(case.checks, values, strict=True):
        if not abs(value - expected) <= case.tolerance * max(1.0, abs(expected)):
            return f"word {word} of the output: expected {expected:.7g}, got {value:.7g}: the work timed was not done"
    return ""
