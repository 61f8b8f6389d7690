"""Reads a report's page as the browser does."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np


def data_of(page: str) -> Any:
    """Return the data block of a page, its columns as NumPy arrays."""
    block = re.search(r'<script type="application/octet-stream" id="data">([^<]*)</script>', page)
    assert block is not None
    return unpacked(base64.b64decode(block[1]))


def unpacked(zipped: bytes) -> Any:
    """Return what was packed."""
    content = gzip.decompress(zipped)
    length = int.from_bytes(content[:4], "little")
    body, rest = json.loads(content[4 : 4 + length]), content[4 + length :]

    def column(value):
        kind = np.dtype("<" + value["$column"])
        size = value["count"] * kind.itemsize
        planes = np.frombuffer(rest[value["at"] : value["at"] + size], np.uint8).reshape(kind.itemsize, value["count"])
        return np.ascontiguousarray(planes.T).reshape(-1).view(kind)

    pool = column(body["pool"])

    def revived(value):
        if isinstance(value, dict):
            if "$column" in value:
                return pool[column(value)] if value.get("pooled") else column(value)
            return {name: revived(part) for name, part in value.items()}
        return [revived(part) for part in value] if isinstance(value, list) else value

    return revived(body["data"])


class Elements(HTMLParser):
    """The start tags of a page, as an HTML parser finds them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        """Keep a tag."""
        self.found.append((tag, dict(attrs)))
