"""``roller check FOLDER``: verify every file of a saved model, without loading its code."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from roller.cli.shared_options_and_tables import console, print_json
from roller.models.session.gpu_bundle import ModelBundle
from roller.runtime.container_kinds import MODEL_BUNDLE
from roller_runtime.core.display import bytes_text
from roller_runtime.session.describe_saved import SavedModelDescription, verify_saved_model


def check_saved(folder: Path, as_json: bool) -> None:
    """Verify a saved model or a bundle for a GPU, and print what it contains."""
    if MODEL_BUNDLE.is_kind_of_folder(folder):
        text = ModelBundle(folder).verify()
        if as_json:
            print_json({"folder": str(folder), "ok": True, "bundle": text})
        else:
            console().print(f"{folder}: all files are intact: {text}", soft_wrap=True)
        return
    found = verify_saved_model(folder)
    if as_json:
        print_json({**asdict(found), "folder": str(folder), "ok": True})
        return
    table = Table(title=f"{folder}: all files are intact", box=box.SIMPLE, title_justify="left", show_header=False)
    for name, value in _description_rows(found):
        table.add_row(name, value)
    console().print(table)


def _description_rows(found: SavedModelDescription) -> list[tuple[str, Any]]:
    ranges = ", ".join(
        f"{n} from {low} to {high}" + (f" in steps of {step}" if step > 1 else "")
        for n, (low, high, step) in found.ranges.items()
    )
    return [
        ("model", found.name),
        ("SHA-256 of the ONNX file", found.model_sha256 or "unknown"),
        ("compiled by", f"roller {found.roller}" if found.roller else "a release before 0.1.0"),
        ("format", str(found.format_version)),
        ("machine", " ".join(found.machine)),
        ("processor features", ", ".join(found.features)),
        ("threads", str(found.threads)),
        ("ranges", ranges or "none: fixed shapes"),
        ("kernels", str(found.kernels)),
        ("weights", bytes_text(found.array_bytes)),
        ("files", str(found.file_count)),
    ]
