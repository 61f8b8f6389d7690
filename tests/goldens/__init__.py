"""Golden outputs: texts a change of meaning shows up in. ``ROLLER_UPDATE_GOLDENS=1 pytest tests`` rewrites them."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent


def assert_golden(name: str, text: str) -> None:
    """Compare ``text`` with the golden file ``name``, or rewrite the file where asked to."""
    path = FOLDER / name
    if os.environ.get("ROLLER_UPDATE_GOLDENS") == "1":
        path.write_text(text + "\n")
    assert path.exists(), f"{path.name}: no such golden; run with ROLLER_UPDATE_GOLDENS=1 and read what it wrote"
    assert text + "\n" == path.read_text(), f"{path.name} differs; if meant, ROLLER_UPDATE_GOLDENS=1 rewrites it"
