"""Builds one self-contained HTML file for a report: inline script and style, compressed columns, no requests."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from roller.errors import ArtifactError

#: Maximum size of a page in bytes.
MOST_BYTES = 1_500_000
#: Scripts in loading order; later ones use definitions of earlier ones.
_SCRIPTS = (
    "dom.js", "data.js", "icicle.js", "table.js", "charts.js", "hints_view.js", "difference_view.js",
    "profile_view.js", "tiles.js", "kernel_view.js",
    "model_view.js", "page.js",
)  # fmt: skip
#: Full-line comments of the scripts, which pages do not need.
_COMMENTS = re.compile(r"^ *(?:/\*\*.*?\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)
#: Characters in JSON that could end a script element or a line, with equivalent escapes.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def html_page(title: str, data: Mapping[str, Any]) -> str:
    """Return the HTML page that shows a report's data.

    Examples
    --------
    >>> page = html_page("</title>", {"view": "benchmark", "name": "</script>", "run": {}, "tables": []})
    >>> page.count("</title>"), page.count("</script>"), page.count("https:")
    (1, 3, 0)
    """
    script, style = _joined_scripts(), _read_page_file("page.css")
    parts = {
        "title": html.escape(title).encode("utf-8", "replace").decode(),
        "policy": f"default-src 'none'; img-src data:; style-src '{_csp_hash(style)}'; "
        f"script-src '{_csp_hash(script)}'",
        "style": style,
        "script": script,
        "data": base64.b64encode(pack_page_data(data)).decode(),
        "head": script_json({"title": title, "view": data["view"]}),
    }
    page = re.sub(r"@(\w+)@", lambda found: parts[found[1]], _read_page_file("page.html"))
    size = len(page.encode())
    if size > MOST_BYTES:
        raise ArtifactError(
            f"report: expected a page of at most {MOST_BYTES} bytes, got {size}. Report a part of it: one kernel, or a "
            f"shorter recording."
        )
    return page


def script_json(value: Any) -> str:
    r"""Return ``value`` as JSON that is safe inside a script element.

    Examples
    --------
    >>> script_json("</script>\u2028")
    '"\\u003c/script\\u003e\\u2028"'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text = re.sub("[<>&\u2028\u2029]", lambda found: _ESCAPES[found[0]], text)
    return text.encode("utf-8", "backslashreplace").decode()  # escapes lone surrogates


def pack_page_data(data: Mapping[str, Any]) -> bytes:
    """Compress a report's data: the length of the JSON, the JSON, and the binary columns to which it refers."""
    # All float64 values are stored once, sorted, in a pool; columns contain indices into the pool. Times repeat in sums
    # and in tables, and sorted values compress better.
    columns = _Columns()
    floats = [array for array in _find_arrays(data) if array.dtype == np.float64]
    pool = np.unique(np.concatenate(floats)) if floats else np.zeros(0)

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            if value.dtype == np.float64:
                return {**columns.add(np.searchsorted(pool, value).astype(np.uint32)), "pooled": True}
            return columns.add(value)
        if isinstance(value, Mapping):
            return {str(name): plain(part) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(part) for part in value]
        if isinstance(value, float) and not math.isfinite(value):
            return None  # JSON has no non-finite numbers
        return value

    body = {"pool": columns.add(pool), "data": plain(data)}
    head = json.dumps(body, allow_nan=False).encode()
    return gzip.compress(len(head).to_bytes(4, "little") + head + b"".join(columns.parts), 9, mtime=0)


def _find_arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _find_arrays(part)


class _Columns:
    """Binary columns, transposed so that bytes of equal significance are adjacent, which compresses better."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._at = 0

    def add(self, array: np.ndarray) -> dict[str, Any]:
        kind = array.dtype.newbyteorder("<")
        column = array.astype(kind).view(np.uint8).reshape(len(array), kind.itemsize).T.tobytes()
        self.parts.append(column)
        self._at += len(column)
        return {"$column": kind.str[1:], "count": len(array), "at": self._at - len(column)}


@cache
def _read_page_file(name: str) -> str:
    return resources.files("roller.page").joinpath(name).read_text(encoding="utf-8")


@cache
def _joined_scripts() -> str:
    whole = '"use strict";\n' + "\n".join(_read_page_file(name) for name in _SCRIPTS)
    return _COMMENTS.sub("", whole)


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
