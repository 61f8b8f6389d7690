"""Probes as a folder for a machine elsewhere: plans, sources and images there, times back, resumable.

The folder holds ``manifest.json``, per probe ``plans/NAME.json``, ``sources/NAME.cu`` and, where it could be built,
``images/NAME.bin``, and in ``roller/`` a copy of what runs them: ``python -m roller.runtime.bundle run . --json FILE``.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from roller.errors import ArtifactError, BuildError, LaunchError
from roller.runtime.bundle_format import MANIFEST, earlier_results, read_checked, write_checked
from roller.runtime.bundle_journal import JournalFile
from roller.runtime.cache_entry import host_fingerprint
from roller.runtime.devices import DeviceHandle, DeviceProperties, same_arch
from roller.runtime.probe_format import Plan
from roller.runtime.probe_run import NO_IMAGE, PlanRunner, Result
from roller.validation import path as path_of

FORMAT, VERSION = "roller-probes", 1
RESULTS, RESULTS_VERSION = "roller-probe-results", 1


def is_probe_bundle(folder: Path) -> bool:
    """Return whether a folder is a bundle of probes; nothing is verified."""
    folder = path_of(folder, "bundle", error=ArtifactError, what="the folder of a bundle")
    try:
        data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("format") == FORMAT


class ProbeBundle:
    """A bundle of probes that was opened.

    Parameters
    ----------
    folder
        The bundle.

    Raises
    ------
    ArtifactError
        Where the manifest is missing, altered or malformed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder = path_of(folder, "bundle", error=ArtifactError, what="the folder of a bundle")
        self.manifest = read_checked(folder / MANIFEST, FORMAT, VERSION)
        try:
            self.checksum: str = self.manifest["checksum"]
            self.device: str = self.manifest["device"]
            self.language: str = self.manifest["language"]
            self.arch: str = self.manifest["arch"]
            self.options: list[str] = self.manifest["options"]
            self.names: list[str] = [row["name"] for row in self.manifest["plans"]]
            self._rows: dict[str, dict[str, Any]] = {row["name"]: row for row in self.manifest["plans"]}
        except (KeyError, TypeError) as err:
            raise ArtifactError(
                f"{folder / MANIFEST}: a field is missing or malformed ({err!r}). Copy it again."
            ) from err

    def plan(self, name: str) -> Plan:
        """Return a plan.

        Raises
        ------
        ArtifactError
            Where its file is missing or altered.
        """
        return Plan.from_dict(json.loads(self._read(f"plans/{name}.json", self._rows[name]["sha256"])))

    def image(self, plan: Plan, *, build: bool = True) -> bytes | str:
        """Return a plan's kernels, built here where the bundle has only their source; or why there are none."""
        digest = self._rows[plan.name]["image_sha256"]
        if digest is not None:
            return self._read(f"images/{plan.name}.bin", digest)
        if not build:
            return "carries source only"
        try:
            return built(plan.source, self.language, plan.arch or self.arch, self.options)
        except BuildError as err:
            return f"carries source only, and it cannot be built here: {err}"

    def _read(self, file: str, digest: str) -> bytes:
        path = self.folder / file
        try:
            data = path.read_bytes()
        except OSError as err:
            raise ArtifactError(f"{path}: cannot read ({err.strerror}). Copy the bundle again.") from err
        if hashlib.sha256(data).hexdigest() != digest:
            raise ArtifactError(f"{path}: is not what the manifest lists. Copy the bundle again.")
        return data


def built(source: str, language: str, arch: str, options: list[str] | tuple[str, ...]) -> bytes:
    """Build a probe's source.

    Raises
    ------
    BuildError
        Where the toolchain is missing or refuses.
    """
    if language == "cuda":
        from roller.backends.cuda import toolchain as cuda_toolchain

        return cuda_toolchain.compile_source(source, arch, options)[0]
    from roller.backends.rocm import toolchain as rocm_toolchain

    return rocm_toolchain.compile_source(source, arch, options)[0]


def run_probe_bundle(
    folder: Path,
    out: Path,
    handle: DeviceHandle,
    *,
    budget_s: float | None = None,
    timeout_s: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run a bundle of probes; continue where an earlier, killed run stopped.

    Parameters
    ----------
    folder
        The bundle.
    out
        Final JSON; a journal lies beside it until all is done.
    handle
        The device.
    budget_s
        No probe starts after this many seconds.
    timeout_s
        Seconds one case may take.
    say
        Receives one line per probe.

    Returns
    -------
    dict
        The content of ``out``.

    Raises
    ------
    ArtifactError
        Where the bundle, the journal or an earlier result is refused.
    LaunchError
        Where the device is missing, or is not what the bundle was built for.
    """
    bundle, start = ProbeBundle(folder), time.monotonic()
    runner = PlanRunner(handle) if timeout_s is None else PlanRunner(handle, timeout_s)
    try:
        properties = runner.properties()
        check_device(properties, handle, bundle.device, bundle.arch, int(bundle.manifest["units"]))
        header = {"bundle": bundle.checksum, "device": properties.name, "kind": handle.kind}
        journal = _Journal(out.with_name(out.name + ".journal"), header, out)
        late = lambda: budget_s is not None and time.monotonic() - start > budget_s  # noqa: E731
        run_plans(bundle, runner, journal, say, late)
    finally:
        runner.close()
    body = results_of(bundle, journal.results, header, properties, time.monotonic() - start)
    results = write_checked(out, body)
    journal.close(remove=results["complete"])
    return results


class Results(Protocol):
    """Where the results of cases are kept, by plan and case."""

    results: dict[str, dict[str, Result]]

    def keeper(self, plan: str) -> Callable[[str, Result], None]:
        """Return what keeps the results of a plan."""

    def sync(self) -> None:
        """Put what was kept on the disk."""


def run_plans(
    bundle: ProbeBundle, runner: PlanRunner, journal: Results, say: Callable[[str], None], late: Callable[[], bool]
) -> None:
    """Run all cases that the journal does not know, until it is late."""
    for name in bundle.names:
        plan = bundle.plan(name)
        if late():
            return
        if all(c.key in journal.results.get(name, {}) for c in plan.cases):
            continue
        image = NO_IMAGE if runner.process.handle.kind == "null" else bundle.image(plan)
        done = runner.run(plan, image, journal.results.get(name), journal.keeper(name), late)
        journal.sync()
        say(_line(name, done))


def results_of(
    bundle: ProbeBundle, results: Mapping[str, Mapping[str, Result]], header: Mapping[str, Any],
    properties: DeviceProperties, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Return what ``roller probe --import`` reads.

    Parameters
    ----------
    bundle
        The bundle.
    results
        By plan and case.
    header
        ``bundle`` (its checksum), ``device`` and ``kind``.
    properties
        What the device says of itself.
    seconds
        What the run took.
    """
    complete = all(c.key in results.get(name, {}) for name in bundle.names for c in bundle.plan(name).cases)
    return {
        "format": RESULTS, "version": RESULTS_VERSION, **header, "complete": complete,
        **{k: bundle.manifest[k] for k in ("yaml", "spec", "roller")},
        "plans": {row["name"]: row["key"] for row in bundle.manifest["plans"]},
        "properties": {**asdict(properties), "versions": dict(properties.versions), "stated": dict(properties.stated)},
        "versions": {"python": platform.python_version(), "numpy": np.__version__,
                     "roller": sys.modules["roller"].__version__},
        "host": host_fingerprint(), "finished_at": time.time(), "seconds": seconds, "results": results,
    }  # fmt: skip


def check_device(properties: DeviceProperties, handle: DeviceHandle, device: str, arch: str, units: int) -> None:
    """Refuse a device that the plans were not made for.

    Raises
    ------
    LaunchError
        Where its architecture or its number of units is another.
    """
    if handle.kind == "null":
        if handle.spec != device:
            raise LaunchError(f"device '{handle.text}': the probes were made for {device}. Use null:{device}.")
        return
    if not same_arch(properties.arch, arch):
        raise LaunchError(
            f"the probes were made for {device} ({arch}), device '{handle.text}' is {properties.name} "
            f"({properties.arch}). Write them with --device of its spec."
        )
    if properties.units and properties.units != units:
        raise LaunchError(
            f"the probes were made for {units} units, {properties.name} has {properties.units}. Write them with "
            f"--set units={properties.units}."
        )


def _line(name: str, results: Mapping[str, Result]) -> str:
    bad = [f"{k}: {r['status']}: {r['reason'].splitlines()[0][:120]}" for k, r in results.items() if "reason" in r]
    return "; ".join([f"{name:14s} {len(results) - len(bad)}/{len(results)} timed", *bad[:2]])


class _Journal:
    """Results so far, one line per case; survives a kill at any moment."""

    def __init__(self, path: Path, header: Mapping[str, Any], final: Path) -> None:
        self.results: dict[str, dict[str, Result]] = {}
        earlier = earlier_results(final, RESULTS, RESULTS_VERSION, header)
        if earlier is not None:
            self.results = earlier["results"]
        self._file = JournalFile(path, header, self._take)

    def keeper(self, plan: str) -> Callable[[str, Result], None]:
        """Return what writes the results of a plan."""

        def keep(case: str, result: Result) -> None:
            self._file.append({"plan": plan, "case": case, "result": result})
            self.results.setdefault(plan, {})[case] = result

        return keep

    def sync(self) -> None:
        """Put what was written on the disk; a kill of this process loses nothing even before."""
        self._file.sync()

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove it where its content has gone into the final result."""
        self._file.close(remove=remove)

    def _take(self, row: dict[str, Any]) -> None:
        self.results.setdefault(row["plan"], {})[row["case"]] = row["result"]
