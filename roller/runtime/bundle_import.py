"""Imports the results of a bundle's run into the local cache: winners and all measured times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roller.artifact import KernelArtifact
from roller.errors import MALFORMED, ArtifactError
from roller.runtime.cache import CacheEntry, CacheKey, KernelCache, Measurement
from roller.runtime.cache_entry import parse_candidates
from roller.runtime.cache_key import source_code_digest
from roller.runtime.check_and_time_bundle_kernels import RESULTS
from roller.targets import is_simulated_device


def import_results(path: Path, cache: KernelCache | None = None) -> dict[str, Any]:
    """Import the results that ``bundle run`` wrote to ``path``; return the numbers of imported kernels and times."""
    results = RESULTS.read(path)
    try:
        return _store_results(results, path, cache or KernelCache())
    except ArtifactError:
        raise
    except (ValueError, *MALFORMED) as err:
        raise ArtifactError(
            f"{path}: expected results of a bundle, got others ({err!r}). Run the bundle again."
        ) from err


def _store_results(results: dict[str, Any], path: Path, into: KernelCache) -> dict[str, Any]:
    if is_simulated_device(results["kind"]):
        raise ArtifactError(f"{path}: was run on a null device; its times are not measured. Nothing was imported.")
    # Kernels from other sources of roller are stored too but not served, since this code would build them differently.
    spec, identity = results["spec"], results["identity"]
    kernels, times = 0, 0
    for operator in results["operators"]:
        measurements = _operator_measurements(results, operator)
        if "winner" not in operator:
            times += len(measurements) if into.add_measurements(measurements) else 0
            continue
        winner = KernelArtifact.from_dict(operator["winner"], f"{path}: {operator['id']}")
        tried = parse_candidates(json.dumps(operator["candidates"]), f"{path}: {operator['id']}")
        key = CacheKey.of(winner.expression, spec["content_key"], identity["template_version"], identity["options"],
                          identity["code"])  # fmt: skip
        if into.store(key, CacheEntry(winner, tried), measurements):
            kernels, times = kernels + 1, times + len(measurements)
    return {"kernels": kernels, "measurements": times, "current": identity["code"] == source_code_digest()}


def _operator_measurements(results: dict[str, Any], operator: dict[str, Any]) -> tuple[Measurement, ...]:
    spec, now, host = results["spec"], results["finished_at"], results["host"]
    detail = (("gpu", results["device"]), ("operator", operator["id"]), *results["properties"]["versions"].items())
    return tuple(
        Measurement(r["candidate_id"], spec["content_key"], spec["name"], r["measured_s"], r["predicted_s"],
                    r["status"], now, host, tuple((str(k), str(v)) for k, v in detail))
        for r in operator["records"]
        if r["measured_s"] is not None
    )  # fmt: skip
