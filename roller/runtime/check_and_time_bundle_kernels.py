"""Checks and times all kernels of a bundle; requires only Python, NumPy and, for a GPU, CuPy."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from roller.artifact import KernelArtifact
from roller.backends.build import build
from roller.backends.parse_device_names import DeviceHandle, DeviceProperties
from roller.errors import ArtifactError, BuildError, LaunchError
from roller.runtime.bundle_format import Bundle, OperatorEntry
from roller.runtime.cache_entry import CachedCandidate, serialise_candidates
from roller.runtime.candidate_records import Record
from roller.runtime.check_and_time_candidates import CheckedExpression, ProfileOptions, ProfilerSession
from roller.runtime.filter_operator_ids import filter_ids
from roller.runtime.resumable_run import ResumedRun, machine_facts, run_unknown_items
from roller_runtime.storage.verified_container import DocumentKind

RESULTS = DocumentKind("roller-results", 1, "the results of a bundle of kernels")
#: Number of operators, after the current one, whose candidates are loaded and whose references are computed ahead.
_AHEAD = 2

#: Records by operator and candidate.
Records = dict[str, dict[str, Record]]
Loaded = tuple[CheckedExpression, list[tuple[str, KernelArtifact]]]


def run_bundle(
    folder: Path,
    out: Path,
    devices: Sequence[DeviceHandle],
    options: ProfileOptions,
    pattern: str = "*",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Check and time a bundle's candidates; continue an earlier run that was interrupted."""
    bundle = Bundle(folder)
    wanted = set(filter_ids([e.id for e in bundle.operators], pattern, str(bundle.folder), ArtifactError))
    records: Records = {}
    sessions = [ProfilerSession(h, options) for h in devices]
    try:
        properties = [open_device_for_bundle(s, bundle) for s in sessions]
        if len({p.name for p in properties}) > 1:
            raise LaunchError(f"--device: expected devices alike, got {[p.name for p in properties]}. Run them apart.")
        header = {"bundle": bundle.checksum, "device": properties[0].name, "kind": devices[0].kind,
                  "seed": options.seed}  # fmt: skip
        kept = ResumedRun(out, RESULTS, header, partial(_add_record, records), _journal_rows)
        entries = [e for e in bundle.operators if e.id in wanted]
        run = OperatorQueue(
            bundle, entries, records, lambda o, r: kept.keep({"operator": o, **asdict(r)}), options, say
        )

        def body() -> dict[str, Any]:
            covered = [e for e in bundle.operators if e.id in wanted or e.id in records]
            return bundle_results(bundle, covered, records, properties[0], run.seconds)

        return kept.run(lambda: run.run_on_devices(sessions), body)
    finally:
        for s in sessions:
            s.close()


def _add_record(records: Records, row: dict[str, Any]) -> None:
    operator = row.pop("operator")
    records.setdefault(operator, {})[row["candidate_id"]] = Record(**row)


def _journal_rows(results: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield earlier results as journal rows, without the fields that only results have."""
    names = {f.name for f in fields(Record)}
    for operator in results["operators"]:
        for row in operator["records"]:
            yield {"operator": operator["id"], **{k: v for k, v in row.items() if k in names}}


def open_device_for_bundle(session: ProfilerSession, bundle: Bundle) -> DeviceProperties:
    """Open a device and check that the bundle was built for it."""
    handle = session.process.handle
    properties = session.process.properties()
    bundle.check_device(f"device '{handle.text}'", properties.name, properties.arch, handle.spec,
                        "Create a bundle with --device of its spec.")  # fmt: skip
    return properties


class OperatorQueue:
    """Queue of the remaining operators, from which one thread per device takes work.

    Parameters
    ----------
    records
        Known records by operator and candidate.
    keep
        Function that stores a new record for an operator.
    options
        Options for profiling; the time budget starts when this object is created.
    say
        Function that receives one line per operator.
    ranks
        Number of candidates to run per operator, counted from the first; all if ``None``.
    """

    def __init__(
        self,
        bundle: Bundle,
        entries: Sequence[OperatorEntry],
        records: Records,
        keep: Callable[[str, Record], None],
        options: ProfileOptions,
        say: Callable[[str], None],
        ranks: int | None = None,
    ) -> None:
        self._bundle, self._records, self._keep, self._options, self._say = bundle, records, keep, options, say
        self._ranks = ranks
        self._waiting = [e for e in entries if not set(e.candidates[:ranks]) <= set(records.get(e.id, ()))]
        self._ahead: dict[str, Future[Loaded]] = {}
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._errors: list[BaseException] = []

    @property
    def seconds(self) -> float:
        """Time since the run began, in seconds."""
        return time.monotonic() - self._start

    def run_on_devices(self, sessions: Sequence[ProfilerSession]) -> None:
        """Run on all devices until all operators are done or the budget is spent."""
        # References are computed ahead in separate threads, so that no device waits for them.
        with ThreadPoolExecutor(max_workers=len(sessions) + _AHEAD) as pool:
            threads = [threading.Thread(target=self._guarded, args=(s, pool)) for s in sessions[1:]]
            for thread in threads:
                thread.start()
            try:
                self._run_waiting_operators(sessions[0], pool)
            finally:
                with self._lock:
                    self._waiting = []  # after an interrupt, the other devices finish their current operator only
                for thread in threads:
                    thread.join()
                pool.shutdown(cancel_futures=True)
        if self._errors:
            raise self._errors[0]

    def _guarded(self, session: ProfilerSession, pool: ThreadPoolExecutor) -> None:
        try:
            self._run_waiting_operators(session, pool)
        except Exception as err:  # noqa: BLE001 - raised again by the joining thread
            self._errors.append(err)

    def _run_waiting_operators(self, session: ProfilerSession, pool: ThreadPoolExecutor) -> None:
        while not self._is_budget_spent():
            with self._lock:
                if not self._waiting:
                    return
                entry = self._waiting.pop(0)
                for e in (entry, *self._waiting[:_AHEAD]):
                    if e.id not in self._ahead:
                        self._ahead[e.id] = pool.submit(self._load, e)
                future = self._ahead.pop(entry.id)
            self._run_operator(session, entry, *future.result())

    def _load(self, entry: OperatorEntry) -> Loaded:
        candidates = self._bundle.load(entry)
        options = self._options
        subject = CheckedExpression(candidates[0][1].expression, options.seed, whole_points=options.whole_points)
        _ = subject.oracle
        return subject, candidates

    def _run_operator(
        self,
        session: ProfilerSession,
        entry: OperatorEntry,
        subject: CheckedExpression,
        candidates: list[tuple[str, KernelArtifact]],
    ) -> None:
        done = self._records.get(entry.id, {})
        best = [s for r in done.values() if r.status == "measured" and (s := r.measured_s)]
        places = {name: (n, name, artifact) for n, (name, artifact) in enumerate(candidates[: self._ranks])}

        def measure(name: str) -> Record:
            return self._measure_candidate(session, subject, *places[name], min(best, default=None))

        for _, record in run_unknown_items(
            places, done, measure, late=self._is_budget_spent,
            faulty=lambda record: record.status == "timeout", faults=sum(r.status == "timeout" for r in done.values()),
            not_run=lambda name, hung: Record(name, "failed", f"not run: {hung} candidates of {entry.id} hung"),
        ):  # fmt: skip
            with self._lock:
                self._keep(entry.id, record)
            if record.status == "measured" and record.measured_s is not None:
                best.append(record.measured_s)
        known = self._records.get(entry.id, {})
        if places.keys() <= known.keys():
            self._say(_operator_summary(entry, known))

    def _measure_candidate(
        self, session: ProfilerSession, subject: CheckedExpression, position: int, name: str, artifact: KernelArtifact,
        best_s: float | None,
    ) -> Record:  # fmt: skip
        if artifact.binary is None and not session.process.handle.target.pretends:
            try:
                artifact = build(artifact)
            except BuildError as err:
                return Record(name, "failed", f"carries source only, and it cannot be built here: {err}")
        return session.measure(subject, position, name, artifact, best_s)

    def _is_budget_spent(self) -> bool:
        budget_s = self._options.budget_s
        return budget_s is not None and self.seconds > budget_s


def _operator_summary(entry: OperatorEntry, records: Mapping[str, Record]) -> str:
    timed = [r for r in records.values() if r.measured_s is not None]
    bad = [r for r in records.values() if not r.ok]
    checked = sum(r.status == "checked" for r in records.values())
    done = f"{checked}/{len(entry.candidates)} right" if checked else f"{len(timed)}/{len(entry.candidates)} timed"
    text = f"{entry.id:8s} {done}"
    if timed:
        best = min(timed, key=lambda r: r.measured_s or 0.0)
        rank = entry.candidates.index(best.candidate_id)
        text += f", best {(best.measured_s or 0) * 1e3:.4g} ms at rank {rank + 1}"
        text += f" (predicted {entry.predicted_s[rank] * 1e3:.4g} ms)"
    return text + "".join(f"; {r.status}: {r.reason.splitlines()[0][:120]}" for r in bad[:3] if r.reason)


def bundle_results(
    bundle: Bundle, entries: Sequence[OperatorEntry], records: Mapping[str, Mapping[str, Record]],
    properties: DeviceProperties, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Return the results of a run: all records and programs, and the winners' complete artifacts."""
    manifest = bundle.manifest
    operators = [_operator_results(bundle, e, records.get(e.id, {})) for e in entries]
    return {
        "complete": all(len(o["records"]) == len(e.candidates) for o, e in zip(operators, entries, strict=True)),
        "spec": {"name": bundle.device, "content_key": manifest["spec"]["content_key"], "arch": bundle.arch},
        "identity": {k: manifest[k] for k in ("template_version", "options", "code", "batch")},
        "properties": {**asdict(properties), "versions": dict(properties.versions)},
        **machine_facts(),
        "seconds": seconds,
        "operators": operators,
    }


def _operator_results(bundle: Bundle, entry: OperatorEntry, records: Mapping[str, Record]) -> dict[str, Any]:
    """Return the results of one operator: all records and programs, and the winner's complete artifact."""
    ordered = [records[c] for c in entry.candidates if c in records]
    timed = [r for r in ordered if r.status == "measured" and r.measured_s is not None]
    best = min(timed, key=lambda r: (r.measured_s, r.candidate_id)) if timed else None
    out: dict[str, Any] = {
        "id": entry.id,
        "expression": entry.expression,
        "flops": entry.flops,
        "records": [
            {"rank": entry.candidates.index(r.candidate_id) + 1, **asdict(r),
             "predicted_s": entry.predicted_s[entry.candidates.index(r.candidate_id)]}
            for r in ordered
        ],
        "failed": [list(f) for f in entry.failed],
        "best": best.candidate_id if best else None,
        "best_s": best.measured_s if best else None,
    }  # fmt: skip
    if ordered:
        artifacts = dict(bundle.load(entry))
        tried = [
            CachedCandidate(r.candidate_id, artifacts[r.candidate_id].program, artifacts[r.candidate_id].estimate,
                            r.status, r.measured_s, r.reason or None)
            for r in ordered
        ]  # fmt: skip
        out["candidates"] = json.loads(serialise_candidates(tried))
        if best is not None:
            out["winner"] = replace(artifacts[best.candidate_id], measured_s=best.measured_s).to_dict()
    return out
