"""A bundle of probes for a different machine: plans, sources and images. Runs can be resumed.

The folder contains ``manifest.json``; for each probe, ``plans/NAME.json``, ``sources/NAME.cu`` and, if it could be
built, ``images/NAME.bin``; and, in ``roller/``, the code for ``python -m roller.runtime.bundle run . --json FILE``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from roller.backends.parse_device_names import DeviceHandle, DeviceProperties
from roller.errors import ArtifactError, BuildError, LaunchError
from roller.runtime.container_kinds import PROBES
from roller.runtime.device_container import DeviceContainer
from roller.runtime.filter_operator_ids import filter_ids
from roller.runtime.probe_plan_format import ProbePlan
from roller.runtime.probe_run import NO_IMAGE, PlanRunner, Result
from roller.runtime.resumable_run import ResumedRun, machine_facts
from roller.targets import target_of_language
from roller_runtime.storage.verified_container import DocumentKind

RESULTS = DocumentKind("roller-probe-results", 1, "the results of a bundle of probes")
#: Results by plan and case.
Results = dict[str, dict[str, Result]]


class ProbeBundle(DeviceContainer):
    """An open bundle of probes; see :class:`~roller_runtime.storage.verified_container.Container`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, PROBES)
        with self.fields():
            self.device = self.manifest["device"]
            self.language: str = self.manifest["language"]
            self.arch = self.manifest["arch"]
            self.options: list[str] = self.manifest["options"]
            self.names: list[str] = [row["name"] for row in self.manifest["plans"]]

    def verify(self) -> str:
        """Read every file; return a description of the contents."""
        plans = [self.plan(name) for name in self.names]
        for plan in plans:
            self.image(plan, build=False)
        return f"{len(plans)} probes, {sum(len(p.cases) for p in plans)} cases for {self.device}"

    def check(self, properties: DeviceProperties, handle: DeviceHandle) -> None:
        """Raise an error if the plans were not made for this device."""
        remedy = f"Use {handle.kind}:{self.device}." if handle.spec else "Write them with --device of its spec."
        self.check_device(f"device '{handle.text}'", properties.name, properties.arch, handle.spec, remedy)
        units = int(self.manifest["units"])
        if not handle.spec and properties.units not in (0, units):
            raise LaunchError(
                f"the probes were made for {units} units, {properties.name} has {properties.units}. Write them with "
                f"--set units={properties.units}."
            )

    def plan(self, name: str) -> ProbePlan:
        """Return a plan by name."""
        data = self.json(f"plans/{name}.json")
        with self.fields():
            return ProbePlan.from_dict(data)

    def image(self, plan: ProbePlan, *, build: bool = True) -> bytes | str:
        """Return a plan's image, built here if the bundle has only its source, or the reason why there is none."""
        file = f"images/{plan.name}.bin"
        if file in self.files:
            return self.read(file)
        if not build:
            return "carries source only"
        try:
            return compile_probe(plan.source, self.language, plan.arch or self.arch, self.options)
        except BuildError as err:
            return f"carries source only, and it cannot be built here: {err}"


def compile_probe(source: str, language: str, arch: str, options: list[str] | tuple[str, ...]) -> bytes:
    """Compile a probe's source; return the image."""
    image: bytes = target_of_language(language, "probe").toolchain_module().compile_source(source, arch, options)[0]
    return image


def run_probe_bundle(
    folder: Path,
    out: Path,
    handle: DeviceHandle,
    *,
    budget_s: float | None = None,
    timeout_s: float | None = None,
    pattern: str = "*",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run a bundle of probes; continue an earlier run that was interrupted."""
    bundle, start = ProbeBundle(folder), time.monotonic()
    wanted, found = filter_ids(bundle.names, pattern, str(bundle.folder), ArtifactError), Results()
    runner = PlanRunner(handle) if timeout_s is None else PlanRunner(handle, timeout_s)
    try:
        properties = runner.properties()
        bundle.check(properties, handle)
        header = {"bundle": bundle.checksum, "device": properties.name, "kind": handle.kind}
        kept = ResumedRun(out, RESULTS, header, partial(_add_result, found), _journal_rows)
        keep = lambda plan, case, result: kept.keep({"plan": plan, "case": case, "result": result})  # noqa: E731
        late = lambda: budget_s is not None and time.monotonic() - start > budget_s  # noqa: E731

        def body() -> dict[str, Any]:
            covered = [n for n in bundle.names if n in wanted or n in found]
            return probe_results(bundle, covered, found, properties, time.monotonic() - start)

        return kept.run(lambda: run_unknown_cases(bundle, wanted, runner, found, keep, say, late), body)
    finally:
        runner.close()


def _add_result(results: Results, row: Mapping[str, Any]) -> None:
    results.setdefault(row["plan"], {})[row["case"]] = row["result"]


def _journal_rows(results: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for plan, cases in results["results"].items():
        for case, result in cases.items():
            yield {"plan": plan, "case": case, "result": result}


def run_unknown_cases(
    bundle: ProbeBundle, names: Sequence[str], runner: PlanRunner, known: Results,
    keep: Callable[[str, str, Result], None], say: Callable[[str], None], late: Callable[[], bool],
) -> None:  # fmt: skip
    """Until ``late``, run the cases of some plans whose results are unknown; pass each result to ``keep``."""
    for name in names:
        plan = bundle.plan(name)
        if late():
            return
        if all(c.key in known.get(name, {}) for c in plan.cases):
            continue
        image = NO_IMAGE if runner.process.handle.target.pretends else bundle.image(plan)
        say(_plan_summary(name, runner.run(plan, image, known.get(name), partial(keep, name), late)))


def probe_results(
    bundle: ProbeBundle, names: Sequence[str], results: Mapping[str, Mapping[str, Result]],
    properties: DeviceProperties, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Return the document that ``roller probe --import`` reads."""
    complete = all(c.key in results.get(name, {}) for name in names for c in bundle.plan(name).cases)
    return {
        "complete": complete,
        **{k: bundle.manifest[k] for k in ("yaml", "spec", "roller")},
        "plans": {row["name"]: row["key"] for row in bundle.manifest["plans"]},
        "properties": {**asdict(properties), "versions": dict(properties.versions), "stated": dict(properties.stated)},
        **machine_facts(), "seconds": seconds, "results": results,
    }  # fmt: skip


def _plan_summary(name: str, results: Mapping[str, Result]) -> str:
    bad = [f"{k}: {r['status']}: {r['reason'].splitlines()[0][:120]}" for k, r in results.items() if "reason" in r]
    return "; ".join([f"{name:14s} {len(results) - len(bad)}/{len(results)} timed", *bad[:2]])
