"""The phases that run kernels: checked under compute-sanitizer, or checked and timed; none runs past its budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.gpu import checker
from benchmarks.gpu.plan import VARIANTS
from benchmarks.gpu.schedule import Clock, Unit
from roller.artifact import KernelArtifact
from roller.backends.device_process import DeviceFault, DeviceProcess
from roller.backends.parse_device_names import DeviceHandle
from roller.errors import LaunchError
from roller.runtime.bundle_format import OperatorEntry
from roller.runtime.candidate_records import Record
from roller.runtime.check_and_time_bundle_kernels import OperatorQueue, open_device_for_bundle
from roller.runtime.check_and_time_candidates import CheckedExpression, ProfileOptions, ProfilerSession

if TYPE_CHECKING:
    from benchmarks.gpu.phases import Job

#: Stage points up to which every output of a variant is compared.
_EVERY_OUTPUT_POINTS = 1 << 24
#: Seconds the device process may take to start under a checker, and kernels of which none is right until it counts as
#: unusable here.
_CHECKED_START_S, _MOST_FAILED = 40.0, 3
_LEAST_S = 0.5


class BudgetSpent(Exception):
    """The kernel that ran was stopped by the end of its phase: it has no result, and is run again."""


class CheckerUnusable(Exception):
    """No kernel is right under the checker: it, and not they, may be what fails here."""


class BudgetedProcess(DeviceProcess):
    """A device process that has for no request more time than its phase has left.

    Parameters
    ----------
    handle, command
        See :class:`~roller.backends.device_process.DeviceProcess`.
    deadline, clock
        Where the clock is at the end of the phase.
    """

    def __init__(self, handle: DeviceHandle, command: Sequence[str], deadline: float, clock: Clock) -> None:
        super().__init__(handle, command)
        self._deadline, self._clock = deadline, clock

    def limit_s(self, timeout_s: float) -> float:
        """Return the seconds that a request may take which else may take ``timeout_s``."""
        return max(_LEAST_S, min(timeout_s, self._deadline - self._clock()))

    def request(
        self, header: dict[str, Any], arrays: Sequence[np.ndarray] = (), *, timeout_s: float
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Send one request and wait for its answer; see :class:`~roller.backends.device_process.DeviceProcess`."""
        return super().request(header, arrays, timeout_s=self.limit_s(timeout_s))


class TimedSession(ProfilerSession):
    """A device process whose kernels are stopped where their phase ends.

    Parameters
    ----------
    job
        What all phases share.
    options
        See :class:`~roller.runtime.check_and_time_candidates.ProfileOptions`.
    deadline
        Where the job's clock is at the end of the phase.
    check
        What looks for errors that outputs do not show; ``None`` for nothing.
    """

    def __init__(
        self, job: Job, options: ProfileOptions, deadline: float, check: checker.Checker | None = None
    ) -> None:
        super().__init__(job.handle, options)
        command = check.command if check is not None else ()
        self.process = BudgetedProcess(job.handle, command, deadline, job.clock)
        self._deadline, self._clock, self._check = deadline, job.clock, check

    def measure(
        self, subject: CheckedExpression, position: int, candidate_id: str, artifact: KernelArtifact,
        best_s: float | None,
        timed: bool = True,
    ) -> Record:  # fmt: skip
        """Check one candidate, and time it where that is asked.

        Raises
        ------
        BudgetSpent
            Where the phase ended before it did.
        """
        if self._deadline - self._clock() < _LEAST_S:
            raise BudgetSpent
        record = super().measure(subject, position, candidate_id, artifact, best_s, timed)
        if record.status == "timeout" and self._clock() >= self._deadline - _LEAST_S:
            raise BudgetSpent
        errors = self._check.errors() if self._check is not None else []
        if not errors or self._check is None:
            return record
        told = f"{self._check.tool}: {'; '.join(errors[:3])}"[:600]
        return replace(record, status="wrong" if record.ok else record.status,
                       reason="; ".join(x for x in (told, record.reason) if x))  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """What one phase does with which kernels.

    Parameters
    ----------
    name
        Of the phase.
    part
        Of the pack, that holds the kernels.
    records
        Name the results are kept under.
    kind
        Of the phase's units, see :class:`~benchmarks.gpu.schedule.Unit`.
    time_s
        Seconds of timing per kernel; 0 where they are only checked.
    tool
        Of compute-sanitizer; empty for none.
    ids
        Operators in the order they run; all when ``None``.
    rounds
        Candidates of every operator that are run in each round; ``None`` for all.
    most
        Candidates of every operator that are run at all; ``None`` for all.
    """

    name: str
    part: str
    records: str
    kind: str
    time_s: float = 0.0
    tool: str = ""
    ids: Sequence[str] | None = None
    rounds: Sequence[int | None] = (None,)
    most: int | None = None


class Kernels:
    """Runs the kernels of a part, the first candidates of every operator before the others of any.

    Parameters
    ----------
    job
        What all phases share.
    wanted
        What is done with which kernels.
    """

    def __init__(self, job: Job, wanted: Wanted) -> None:
        self.name, self._job, self._wanted = wanted.name, job, wanted
        self._bundle = job.pack.kernels(wanted.part)
        held = {e.id: e for e in self._bundle.operators}
        order = list(held) if wanted.ids is None else [i for i in wanted.ids if i in held]
        self._entries = [_cut(held[i], wanted.most) for i in job.chosen(order)]
        self._records = job.journal.data.records.setdefault(wanted.records, {})
        self._unavailable = False

    def _reached(self, entry: OperatorEntry, ranks: int | None) -> list[str]:
        return [c for c in entry.candidates[:ranks] if c not in self._records.get(entry.id, ())]

    def left(self) -> int:
        """Return how many candidates have no record."""
        return sum(1 for _ in self.waiting())

    def expected(self) -> int:
        """Return the same: no other phase has to come first."""
        return self.left()

    def waiting(self) -> Iterator[Unit]:
        """Yield what has no record, in the order it is run."""
        seen: set[tuple[str, str]] = set()
        if self._unavailable:
            return
        for ranks in self._wanted.rounds:
            for e in self._entries:
                for candidate in self._reached(e, ranks):
                    if (e.id, candidate) not in seen:
                        seen.add((e.id, candidate))
                        predicted_s = e.predicted_s[e.candidates.index(candidate)]
                        yield Unit(self._wanted.kind, (e.id, candidate), predicted_s)

    def run(self, deadline: float) -> None:
        """Run what is left."""
        if self._wanted.tool and not self._job.pretended:
            program = checker.find()
            if program is None:
                self._without("expected compute-sanitizer on PATH or below /usr/local/cuda*, found none")
            elif self._checked(program, deadline):
                return
        if self._wanted.tool == "racecheck" and not self._job.pretended:
            self._unavailable = True  # races are all that the phase is for
        else:
            self._rounds(deadline, self._keep_unchecked if self._wanted.tool else self._keep, None)

    def _keep_unchecked(self, operator: str, record: Record) -> None:
        """Keep a record that says that no tool looked for errors of memory."""
        told = record.reason or f"{self._wanted.tool} did not check it" * (not self._job.pretended)
        self._keep(operator, replace(record, reason=told))

    def _checked(self, program: str, deadline: float) -> bool:
        """Run what is left under a tool; return whether that was possible."""
        check, guard = checker.Checker(program, self._wanted.tool), _UntilOneIsRight(self._keep)
        try:
            self._rounds(deadline, guard.keep, check)
            guard.flush()
        except (CheckerUnusable, LaunchError) as err:
            self._without(f"compute-sanitizer cannot be used here: {err}")
            return False
        finally:
            for error in check.errors():
                self._job.remark(self.name, f"{self._wanted.tool}, when its process ended: {error}")
            check.close()
        return True

    def _without(self, reason: str) -> None:
        more = "" if self._wanted.tool == "racecheck" else "; kernels run without it"
        self._job.remark(self.name, f"{reason.splitlines()[0][:300]}{more}")

    def _rounds(self, deadline: float, keep: Callable[[str, Record], None], check: checker.Checker | None) -> None:
        job, wanted = self._job, self._wanted
        whole = _EVERY_OUTPUT_POINTS if wanted.part == VARIANTS else None
        options = ProfileOptions(
            seed=job.seed, timeout_s=job.timeout_s, time_s=wanted.time_s or 0.01, whole_points=whole,
            timed=wanted.time_s > 0,
        )  # fmt: skip
        session = TimedSession(job, options, deadline, check)
        try:
            _open(session, check)
            open_device_for_bundle(session, self._bundle)
            for ranks in (wanted.most,) if wanted.most else wanted.rounds:
                left = replace(options, budget_s=max(0.0, deadline - job.clock()))
                run = OperatorQueue(self._bundle, self._entries, self._records, keep, left, job.say, ranks)
                run.run_on_devices([session])
        except BudgetSpent:
            return
        finally:
            session.close()

    def _keep(self, operator: str, record: Record) -> None:
        self._job.journal.keep_record(self.name, self._wanted.records, operator, record)

    def pretend(self, unit: Unit, reason: str) -> None:
        """Keep a record of a kernel that nobody ran."""
        operator, candidate = unit.key
        good = Record(candidate, "measured" if self._wanted.time_s else "checked",
                      measured_s=unit.predicted_s if self._wanted.time_s else None)  # fmt: skip
        self._keep(operator, Record(candidate, "timeout", reason) if reason else good)


def _cut(entry: OperatorEntry, most: int | None) -> OperatorEntry:
    """Return an operator with its first candidates only."""
    return replace(entry, candidates=entry.candidates[:most], predicted_s=entry.predicted_s[:most])


def _open(session: TimedSession, check: checker.Checker | None) -> None:
    """Start a device process; one under a checker has less time for it.

    Raises
    ------
    LaunchError
        Where it does not start.
    """
    if check is None:
        return
    try:
        session.process.request({"op": "properties"}, timeout_s=_CHECKED_START_S)
    except DeviceFault as err:
        raise LaunchError(err.reason) from err


class _UntilOneIsRight:
    """Holds records back until a kernel is right: where none of the first is, their checker may be at fault.

    Parameters
    ----------
    keep
        Takes the records of an operator.
    """

    def __init__(self, keep: Callable[[str, Record], None]) -> None:
        self._keep = keep
        self._held: list[tuple[str, Record]] | None = []

    def keep(self, operator: str, record: Record) -> None:
        """Take a record.

        Raises
        ------
        CheckerUnusable
            Where it is one too many of which none is right.
        """
        if self._held is None:
            return self._keep(operator, record)
        self._held.append((operator, record))
        if record.ok or record.reason.startswith(checker.TOOLS):  # an error it found shows that it works
            return self.flush()
        if len(self._held) >= _MOST_FAILED:
            raise CheckerUnusable(f"{record.status}: {record.reason}")
        return None

    def flush(self) -> None:
        """Hand over what was held back, and all that follows."""
        held, self._held = self._held or [], None
        for operator, record in held:
            self._keep(operator, record)
