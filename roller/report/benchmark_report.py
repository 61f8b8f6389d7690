"""HTML report of a benchmark's results: the run, its limits, and every table in the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from roller.errors import ArtifactError
from roller.page.anonymize_report_paths import without_paths
from roller.page.html_page import html_page
from roller_runtime.core.files import read_file

#: Kinds of input that a report accepts, for error messages.
UNDERSTOOD = (
    "an entry file (.py), an ONNX model (.onnx), a recording of PyTorch's profiler (.json, .json.gz), a saved profile, "
    "a kernel or a benchmark's results (.json), or the folder of a compiled model"
)
#: A column whose name contains one of these is labelled as predicted; all others are labelled as measured.
_PREDICTED = ("predicted", "roofline", "model_s", "expected")


def page_of_benchmark(path: Path, *, anonymous: bool = False) -> str:
    """Return a benchmark's results as one self-contained HTML file."""
    try:
        found = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{path}: expected {UNDERSTOOD}, got a file that is not JSON ({error}). Name one."
        ) from error
    if not isinstance(found, Mapping) or not any(True for _ in _tables_of_json(found)):
        raise ArtifactError(f"{path}: expected {UNDERSTOOD}, got other JSON, without a list of rows. Name one.")
    name = "benchmark" if anonymous else path.stem
    data = benchmark_data(name, found)
    return html_page(f"{name}: results", without_paths(data) if anonymous else data)


def benchmark_data(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page's data: plain facts, and tables named by their path in the file."""
    run = found.get("run")
    facts = {**(run if isinstance(run, Mapping) else {}), **{n: v for n, v in found.items() if _is_plain(v)}}
    return {"view": "benchmark", "name": name, "run": _flatten_row(facts), "tables": list(_tables_of_json(found))}


def _tables_of_json(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, value in found.items():
        if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            rows = [_flatten_row(row) for row in value]
            columns = dict.fromkeys(column for row in rows for column in row)
            whole = "predicted" if all(row.get("kind") == "predicted" for row in rows) else ""
            yield {
                "name": name,
                "columns": [
                    {"name": c, "label": whole or _predicted_or_measured(c),
                     "values": [row.get(c) for row in rows]} for c in columns
                ],
            }  # fmt: skip
        elif isinstance(value, Mapping) and name != "run":
            yield from ({**table, "name": f"{name}.{table['name']}"} for table in _tables_of_json(value))


def _predicted_or_measured(column: str) -> str:
    return "predicted" if any(word in column for word in _PREDICTED) else "measured"


def _flatten_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a row: nested mappings become columns, and lists become text."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": part for inner, part in _flatten_row(value).items()}
        else:
            found[str(name)] = value if _is_plain(value) else json.dumps(value)
    return found


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))
