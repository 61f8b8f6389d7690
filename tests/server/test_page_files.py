"""The files of the live page: what is bundled is of its sources, and the whole is small."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from roller.server.hint_what_if_options import what_if_options_of_hint
from roller.server.page_files import page_files

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "roller" / "server" / "page"
MOST_BYTES = 700_000


def test_the_editor_is_bundled_from_its_lock_file():
    sources = b"".join((ROOT / "page" / name).read_bytes() for name in ("package-lock.json", "bundle.js"))
    first = (PAGE / "codemirror.js").read_text("utf-8").partition("\n")[0]
    assert hashlib.sha256(sources).hexdigest() in first, "bundle it again with `make page`"


def test_what_is_bundled_has_its_licences():
    locked = json.loads((ROOT / "page" / "package-lock.json").read_text("utf-8"))["packages"]
    shipped = {path.removeprefix("node_modules/"): row for path, row in locked.items() if path and not row.get("dev")}
    licences = (PAGE / "LICENSES.txt").read_text("utf-8")
    missing = [name for name, row in shipped.items() if f"{name} {row['version']} ({row['license']})\n" not in licences]
    assert len(shipped) > 10 and not missing


def test_the_page_is_small_and_runs_nothing_inline():
    files = page_files()
    assert sum(len(body) for body, _ in files.values()) < MOST_BYTES
    page = files["/"][0].decode()
    assert re.findall(r"<script([^>]*)>([^<]*)", page) == [
        (' defer src="/codemirror.js"', ""),
        (' defer src="/page.js"', ""),
    ]
    assert not re.search(r"<style|\son\w+=|\sstyle=|https?://", page)
    assert "innerHTML" not in files["/page.js"][0].decode()


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ("AMP()", ["amp"]),
        ("FusedOptimizer() + CudaGraph()", ["fused-optimizer", "cuda-graph"]),
        ("ZeroTime(phase=optimizer)", ["zero-time:phase=optimizer"]),
        ("DDP(devices=4, bandwidth=25000000000.0)", ["ddp:devices=4,bandwidth=25000000000.0"]),
        ("something else", []),
        ("AMP", []),
        ("AMP(dtype=bf17)", []),
    ],
)
def test_a_hint_is_what_its_options_say(change, options):
    assert what_if_options_of_hint(change) == options
