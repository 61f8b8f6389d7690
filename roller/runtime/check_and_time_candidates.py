"""Checks and times candidates on devices that can fail, each in its own process; failures become records.

Every candidate is compared with the float64 reference before it is timed. If one hangs, crashes, writes out of bounds
or is wrong, its record states the reason, and a new process continues with the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.device_process import DeviceFault, DeviceProcess
from roller.backends.parse_device_names import DeviceHandle, DeviceProperties
from roller.backends.periodic_inputs import periodic_inputs
from roller.expr import TensorExpr
from roller.expr.serialize import expr_to_dict
from roller.runtime.candidate_records import Record
from roller.runtime.check import Oracle
from roller.runtime.random_inputs import checked_seed
from roller_runtime.core.dtypes import decode_stored_values
from roller_runtime.core.validation import validate_integer, validate_number

#: Time limit in seconds for a check without timing: it ends a hanging kernel, not a slow one.
_PATIENT_S = 3600.0
#: Time limit in seconds for allocating and filling the inputs.
_PREPARE_TIMEOUT_S = 120.0
#: Candidates are dropped if their warm first run exceeds this multiple of the best median.
_DROP_FACTOR = 2.0


@dataclass(frozen=True)
class ProfileOptions:
    """Options for profiling.

    Parameters
    ----------
    seed
        Seed for the inputs and for the compared points.
    timeout_s
        Time limit, in seconds, for a candidate's check and, separately, for its timing; a process that exceeds it is
        stopped.
    time_s
        Time spent on timing each candidate, in seconds.
    budget_s
        Time limit for all candidates, in seconds; candidates not reached keep the status ``built``. The first one
        always runs.
    whole_points
        Number of stage points up to which every output element is compared; the check's default if ``None``.
    timed
        Whether correct candidates are timed.
    """

    seed: int = 0
    timeout_s: float = 20.0
    time_s: float = 0.1
    budget_s: float | None = None
    whole_points: int | None = None
    timed: bool = True

    def __post_init__(self) -> None:
        """Raise an error for invalid numbers; an infinite limit means no limit."""
        checked_seed(self.seed)
        for name in ("timeout_s", "time_s"):
            validate_number(
                getattr(self, name), name, above=0.0, infinite=name != "time_s", expected="a number above 0"
            )
        if self.budget_s is not None:
            validate_number(self.budget_s, "budget_s", infinite=True, expected="seconds of at least 0, or None")
        if self.whole_points is not None:
            validate_integer(self.whole_points, "whole_points")


class CheckedExpression:
    """An expression under test, with periodic inputs and a reference at sampled points."""

    def __init__(
        self, expression: TensorExpr, seed: int = 0, oracle: Oracle | None = None, whole_points: int | None = None
    ) -> None:
        self.expression, self.seed, self._oracle = expression, seed, oracle
        self._whole_points = whole_points

    @cached_property
    def oracle(self) -> Oracle:
        """The reference, computed on first use, which may take a second."""
        inputs = periodic_inputs(self.expression, self.seed)
        return self._oracle or Oracle(self.expression, inputs, self.seed, whole_points=self._whole_points)

    def cover(self, artifacts: Mapping[str, KernelArtifact]) -> None:
        """Also compare at the tile boundaries of these candidates."""
        self.oracle.cover((a.program for a in artifacts.values()), periodic_inputs(self.expression, self.seed))


class ProfilerSession:
    """A device process and the expression that it is prepared for."""

    def __init__(self, handle: DeviceHandle, options: ProfileOptions) -> None:
        self.process = DeviceProcess(handle)
        self._options = options
        self._prepared: tuple[CheckedExpression, int, int] | None = None

    def measure(
        self,
        subject: CheckedExpression,
        position: int,
        candidate_id: str,
        artifact: KernelArtifact,
        best_s: float | None,
        timed: bool = True,
    ) -> Record:
        """Check one candidate; time it if it is correct."""
        options, build_s = self._options, artifact.build.get("seconds")
        try:
            self._send_subject(subject)
            request = {"op": "check", "position": position, "artifact": artifact.to_dict()}
            _, stored = self.process.request(request, timeout_s=options.timeout_s if timed else _PATIENT_S)
            outputs = subject.expression.output_tensors
            outcome = subject.oracle.check_compared_elements(
                [decode_stored_values(x, t.dtype) for x, t in zip(stored, outputs, strict=True)]
            )
            if not outcome.ok:
                return Record(candidate_id, "wrong", outcome.message, build_s=build_s)
            if not (timed and options.timed):
                return Record(candidate_id, "checked", outcome.doubt, build_s=build_s)
            drop_s = None if best_s is None else best_s * _DROP_FACTOR
            timing = {"op": "time", "id": candidate_id, "budget_s": options.time_s, "drop_s": drop_s}
            reply, _ = self.process.request(timing, timeout_s=options.timeout_s)
        except DeviceFault as err:
            return Record(candidate_id, err.status, err.reason, build_s=build_s)
        status = "measured" if reply["complete"] else "slower"
        return Record(candidate_id, status, outcome.doubt, reply["median_s"], build_s, reply.get("spread_s"))

    def _send_subject(self, subject: CheckedExpression) -> None:
        """Send the subject to the process unless the process already has it."""
        count = sum(map(len, subject.oracle.points))
        if self._prepared == (subject, self.process.generation, count) and self.process.alive:
            return
        request = {"op": "prepare", "expression": expr_to_dict(subject.expression), "seed": subject.seed}
        points = [np.ascontiguousarray(p) for p in subject.oracle.points]
        self.process.request(request, points, timeout_s=_PREPARE_TIMEOUT_S)
        self._prepared = (subject, self.process.generation, count)

    def close(self) -> None:
        """End the device's process."""
        self.process.close()


class DeviceBench:
    """Context manager for several rounds of candidates of one expression on one device.

    Parameters
    ----------
    device
        Device, which is opened for the first candidate.
    oracle
        Reference for these inputs, if it was computed elsewhere.
    session
        Open device shared by several expressions; its owner closes it.
    """

    def __init__(
        self,
        expression: TensorExpr,
        device: DeviceHandle,
        seed: int = 0,
        oracle: Oracle | None = None,
        session: ProfilerSession | None = None,
    ) -> None:
        self._subject = CheckedExpression(expression, seed, oracle)
        self._session = session or ProfilerSession(device, ProfileOptions(seed=seed))
        self._lent = session is not None
        self._judged = 0

    def profile(self, artifacts: Mapping[str, KernelArtifact], timed: bool = True) -> dict[str, Record]:
        """Check candidates; if ``timed``, time the correct ones. Return a record per id, in ``artifacts``' order."""
        if artifacts and not self._judged:
            self._session.process.properties()
        self._subject.cover(artifacts)
        records: dict[str, Record] = {}
        for name, artifact in artifacts.items():
            best_s = min((r.measured_s for r in records.values() if r.measured_s is not None), default=None)
            records[name] = self._session.measure(self._subject, self._judged, name, artifact, best_s, timed)
            self._judged += 1
        return records

    def properties(self) -> DeviceProperties:
        """Return the properties of the device; raise :class:`LaunchError` if it cannot be opened."""
        return self._session.process.properties()

    def __enter__(self) -> DeviceBench:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._lent:
            self._session.close()


def profile(
    expression: TensorExpr,
    artifacts: Mapping[str, KernelArtifact],
    devices: Sequence[DeviceHandle],
    options: ProfileOptions | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> dict[str, Record]:
    """Check and time the candidates of one expression on several devices.

    Examples
    --------
    >>> import roller
    >>> from roller.compiler.pipeline import lower
    >>> from roller.backends.parse_device_names import parse_device_name
    >>> expr = roller.ops.matmul(64, 64, 64)
    >>> kernel = roller.compile(expr, device="v100", top_k=1)
    >>> record = profile(expr, {"only": kernel.artifact}, [parse_device_name("null:v100")])["only"]
    >>> record.status, 0.8 < record.measured_s / kernel.estimate.seconds < 1.2
    ('measured', True)
    """
    chosen = options or ProfileOptions()
    run = _CandidateQueue(CheckedExpression(expression, chosen.seed), artifacts, chosen, on_record)
    if not artifacts:
        return {}
    sessions = [ProfilerSession(h, chosen) for h in devices]
    try:
        for s in sessions:
            s.process.properties()
        threads = [threading.Thread(target=run.work, args=(s,)) for s in sessions[1:]]
        for thread in threads:
            thread.start()
        run.work(sessions[0])
        for thread in threads:
            thread.join()
    finally:
        run.stop()
        for s in sessions:
            s.close()
    return {name: run.records[name] for name in artifacts}


class _CandidateQueue:
    """Queue from which several devices take candidates."""

    def __init__(
        self,
        subject: CheckedExpression,
        artifacts: Mapping[str, KernelArtifact],
        options: ProfileOptions,
        on_record: Callable[[Record], None] | None,
    ) -> None:
        self.records: dict[str, Record] = {}
        self._subject, self._options, self._on_record = subject, options, on_record
        self._waiting = list(enumerate(artifacts.items()))
        self._best_s: float | None = None
        self._lock = threading.Lock()
        self._start = time.monotonic()
        # Computed here so that two threads do not compute it twice, and outside the budget.
        if artifacts:
            subject.cover(artifacts)

    def work(self, session: ProfilerSession) -> None:
        """Process candidates until the queue is empty."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                position, (name, artifact) = self._waiting.pop(0)
                late = bool(position) and self._over_budget()
                best_s = self._best_s
            if late:
                reason = f"not profiled: the budget of {self._options.budget_s:g} s was spent"
                record = Record(name, "built", reason, build_s=artifact.build.get("seconds"))
            else:
                record = session.measure(self._subject, position, name, artifact, best_s)
            with self._lock:
                self.records[name] = record
                if record.status == "measured" and record.measured_s is not None:
                    self._best_s = min(record.measured_s, self._best_s or record.measured_s)
                if self._on_record is not None:
                    self._on_record(record)

    def stop(self) -> None:
        """Empty the queue after an interrupt."""
        with self._lock:
            self._waiting.clear()

    def _over_budget(self) -> bool:
        budget_s = self._options.budget_s
        return budget_s is not None and time.monotonic() - self._start > budget_s
