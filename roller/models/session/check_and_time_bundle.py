"""Checks and times a model bundle on a GPU; an interrupted run resumes where it stopped."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from roller.models.session.gpu_bundle import ModelBundle
from roller.models.session.gpu_device import Device
from roller.models.session.gpu_session import load_bundle
from roller.runtime.resumable_run import ResumedRun
from roller_runtime.core.dtypes import decode_stored_values, storage_dtype
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.program_steps import Call, Copy, Foreign, ParallelGroup, Run, Step
from roller_runtime.storage.verified_container import DocumentKind

RESULTS = DocumentKind("roller-model-results", 1, "the results of a model's bundle")
#: Phases in order; each writes one row of the journal.
PHASES = ("check", "steps", "graph", "profile")
#: Number of untimed runs before the timed ones.
_WARM_UP = 5

Say = Callable[[str], None]


def run_bundle(
    folder: Path, out: Path, device: Device, *, samples: int = 50, say: Say = lambda line: None
) -> dict[str, Any]:
    """Check a bundle's model on a device; then time it launched step by step, launched as a graph, and per step."""
    bundle, properties = ModelBundle(folder), device.properties()
    bundle.check(properties)
    header = {"bundle": bundle.checksum, "device": properties["name"], "samples": samples}
    done: dict[str, Any] = {}
    kept = ResumedRun(out, RESULTS, header, lambda row: done.update({row["phase"]: row}),
                      lambda earlier: earlier["phases"].values())  # fmt: skip

    def work() -> None:
        for row in run_phases(bundle, device, samples, dict(done)):
            kept.keep(row)
            say(describe_phase(row))

    return kept.run(work, lambda: _assemble_results(bundle, properties, done))


def run_phases(
    bundle: ModelBundle, device: Device, samples: int, known: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each phase missing from ``known``; stop if the model is wrong."""
    bundle.check(device.properties())
    left = [p for p in PHASES if p not in known]
    if not left or not known.get("check", {"ok": True})["ok"]:
        return
    subject = _PhaseRunner(bundle, device, samples)
    for phase in left:
        start = time.perf_counter()
        row = {"phase": phase, **getattr(subject, phase)()}
        row["took_s"] = time.perf_counter() - start
        yield row
        if phase == "check" and not row["ok"]:
            return  # a wrong model is not timed


class _PhaseRunner:
    """Runs a bundle's model on a device, with one method per phase."""

    def __init__(self, bundle: ModelBundle, device: Device, samples: int) -> None:
        self.bundle, self._samples = bundle, samples
        self._session = load_bundle(bundle.folder, device)
        self._frame = self._session.frame()
        self._expected = bundle.expected()
        self._frame.upload(self._test_inputs())

    def _test_inputs(self) -> list[np.ndarray]:
        """Return the inputs of the first test; zeros if there is none."""
        if self._expected:
            return list(self._expected[0].feeds)
        program = self._session.plan.program
        values = [program.values[n] for n in program.inputs]
        return [np.zeros(v.shape, storage_dtype(v.dtype)) for v in values]

    def check(self) -> dict[str, Any]:
        """Launch the model step by step and as a graph; compare the outputs with the expected ones."""
        frame, program, rows = self._frame, self._session.plan.program, []
        for number, expected in enumerate(self._expected):
            for way in ("steps", "graph"):
                if way == "graph" and not frame.capture():
                    continue
                frame.upload(expected.feeds)
                (frame.launch if way == "steps" else frame.replay)()
                for name, got, wanted in zip(program.outputs, frame.download(), expected.outputs, strict=True):
                    dtype = (program.loose.get(name) or program.values[name]).dtype
                    error = relative_error(decode_stored_values(got, dtype), decode_stored_values(wanted, dtype))
                    ok = bool(error <= self.bundle.tolerance)
                    rows.append({"test": number, "way": way, "output": name, "error": error, "ok": ok})
        return {"ok": all(r["ok"] for r in rows), "outputs": rows, "tests": len(self._expected)}

    def steps(self) -> dict[str, Any]:
        """Time all steps together, launched one by one."""
        return self._time_runs(self._frame.launch)

    def graph(self) -> dict[str, Any]:
        """Time all steps together, launched as a graph."""
        if not self._frame.capture():
            return {"median_s": None, "reason": self._frame.no_graph}
        return self._time_runs(self._frame.replay)

    def profile(self) -> dict[str, Any]:
        """Time each step, launched one by one."""
        plan, count = self._session.plan, max(1, min(self._samples, 20))
        times = self._frame.profile(count)
        rows = [{"step": step_label(s), "measured_s": times[id(s)], "predicted_s": predicted_step_s(s, plan)}
                for s in plan.program.steps]  # fmt: skip
        return {"steps": rows, "samples": count}

    def _time_runs(self, run: Callable[[], None]) -> dict[str, Any]:
        self._frame.time(run, _WARM_UP)
        samples = self._frame.time(run, self._samples)
        low, _, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else (samples[0],) * 3
        return {"median_s": statistics.median(samples), "spread_s": high - low, "samples": len(samples)}


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest difference divided by the largest magnitude; infinite if shapes or non-finite values differ.

    Examples
    --------
    >>> relative_error(np.float32([1, 2.5]), np.float32([1, 2]))
    0.25
    >>> relative_error(np.float32([np.nan]), np.float32([1]))
    inf
    """
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    if a.shape != b.shape:
        return float("inf")
    odd = ~(np.isfinite(a) & np.isfinite(b))
    if not np.array_equal(a[odd], b[odd], equal_nan=True):
        return float("inf")
    difference = np.abs(np.where(odd, 0.0, a) - np.where(odd, 0.0, b)).max(initial=0.0)
    return float(difference / max(np.abs(np.where(odd, 0.0, b)).max(initial=0.0), 1e-30)) if difference else 0.0


def step_label(step: Step) -> str:
    """Return a readable label of a step."""
    if isinstance(step, ParallelGroup):
        return " | ".join(" > ".join(step_label(s) for s in lane) for lane in step.lanes)
    if isinstance(step, Run):
        return step.label or step.kernel
    if isinstance(step, Call):
        return step.label or step.function
    if isinstance(step, Foreign):
        return f"{step.runtime}({', '.join(step.nodes)})"
    return f"copy {step.source}" if isinstance(step, Copy) else type(step).__name__.lower()


def predicted_step_s(step: Step, plan: Plan) -> float | None:
    """Return the predicted time, in seconds, of a step or of a group's longest lane; ``None`` without a prediction."""
    if isinstance(step, ParallelGroup):
        lanes = [[predicted_step_s(s, plan) or 0.0 for s in lane] for lane in step.lanes]
        return max(map(sum, lanes), default=0.0)
    return plan.predicted_s.get(step.kernel) if isinstance(step, Run) else None


def describe_phase(row: Mapping[str, Any]) -> str:
    """Return the result of a phase as text."""
    phase = row["phase"]
    if phase == "check":
        bad = [r for r in row["outputs"] if not r["ok"]]
        worst = max((r["error"] for r in row["outputs"]), default=0.0)
        if not row["tests"]:
            return "check: nothing to compare with"
        wrong = f"WRONG: {', '.join(sorted({r['output'] for r in bad}))}; " if bad else ""
        return f"{phase}: {wrong}{row['tests']} tests, largest relative error {worst:.2g}"
    if phase == "profile":
        return f"profile: {len(row['steps'])} steps"
    if row["median_s"] is None:
        return f"{phase}: none, {row['reason']}"
    return f"{phase}: median {row['median_s'] * 1e3:.4g} ms of {row['samples']} runs"


def _assemble_results(bundle: ModelBundle, properties: dict[str, Any], done: dict[str, Any]) -> dict[str, Any]:
    wrong, complete = any(not row.get("ok", True) for row in done.values()), set(PHASES) <= set(done)
    return {"model": bundle.model, "built_for": bundle.device, "properties": properties,
            "phases": {p: done[p] for p in PHASES if p in done},
            "complete": wrong or complete, "ok": not wrong and complete}  # fmt: skip
