"""The kinds of folders that travel between machines, other than saved models for a processor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roller_runtime.storage.verified_container import SAVED, DocumentKind, Files


def _operator_files(manifest: Mapping[str, Any]) -> Files:
    return {row["file"]: row["sha256"] for row in manifest["operators"]}


def _probe_files(manifest: Mapping[str, Any]) -> Files:
    plans = {f"plans/{row['name']}.json": row["sha256"] for row in manifest["plans"]}
    images = {f"images/{row['name']}.bin": row["image_sha256"] for row in manifest["plans"] if row["image_sha256"]}
    return {**plans, **images}


def _model_bundle_files(manifest: Mapping[str, Any]) -> Files:
    return {"arrays.bin": None, **manifest["files"]}


BUNDLE = DocumentKind("roller-bundle", 1, "a bundle of kernels", "Copy the bundle again.",
              "Make one: `roller bundle create`.", _operator_files)  # fmt: skip
PROBES = DocumentKind("roller-probes", 1, "a bundle of probes", "Copy the bundle again.",
              "Make one: `roller probe --bundle`.", _probe_files)  # fmt: skip
#: Model for a GPU. Bundles are written in version 1; plans of version 2, which has packs, are refused.
MODEL_BUNDLE = DocumentKind("roller-model-bundle", 2, "a model for a GPU", "Copy the bundle again.",
                    "Pass the folder that save wrote.", _model_bundle_files)  # fmt: skip
KINDS = (BUNDLE, PROBES, MODEL_BUNDLE, SAVED)
