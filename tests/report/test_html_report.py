"""A page is one file: no request, its script and style by their digests, strings that cannot leave the data."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re

import numpy as np
import pytest

from roller.errors import ArtifactError
from roller.page.anonymize_report_paths import without_paths
from roller.page.html_page import MOST_BYTES, html_page, pack_page_data, script_json
from tests.report.pages import Elements, data_of, unpacked

HOSTILE = "</script><img src=x onerror=alert(1)>@script@\u2028\u2029\"'&\ud800"


def page(**more):
    return html_page("t", {"view": "benchmark", "name": "n", "run": {}, "tables": [], **more})


def test_a_page_asks_for_nothing():
    made = page()
    addresses = [v for _, attrs in Elements(made).found for k, v in attrs.items() if k in ("src", "href", "srcset")]
    assert addresses == ["data:,", "#main"]
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|\bimport\s*\(|WebSocket|sendBeacon", made)
    # The namespace of SVG is a name, not an address.
    assert set(re.findall(r"https?://[^\s\"']+", made)) == {"http://www.w3.org/2000/svg"}


def test_only_the_pages_own_script_and_style_run():
    made = page()
    policy = next(attrs["content"] for tag, attrs in Elements(made).found if "http-equiv" in attrs)
    for tag in ("script", "style"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", made, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy


def test_no_script_makes_html_of_strings():
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", page())


def test_hostile_strings_stay_strings():
    made = html_page(HOSTILE, {"view": "benchmark", "name": HOSTILE, "run": {HOSTILE: HOSTILE}, "tables": []})
    tags = [tag for tag, _ in Elements(made).found]
    assert "img" not in tags and tags.count("script") == 3
    assert data_of(made)["run"] == {HOSTILE: HOSTILE}
    head = re.search(r'id="head">(.*?)</script>', made)[1]
    assert json.loads(head)["title"] == HOSTILE and "<" not in head and "\u2028" not in head


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "\u2028\u2029", "&amp;", "\ud800", "é", '"'])
def test_json_in_a_script_reads_back(text):
    coded = script_json({text: [text]})
    assert json.loads(coded) == {text: [text]} and not set(coded) & set("<>&\u2028\u2029\ud800")


def test_columns_read_back_to_the_last_bit():
    draw = random.Random(3)
    numbers = np.array([draw.lognormvariate(-8, 4) for _ in range(500)] + [0.0, 1 / 3, 2.0**53, np.nan, 5e-324, 1e308])
    data = {
        "a": numbers, "b": {"c": [numbers[::-1].copy(), np.arange(7, dtype=np.uint32)]}, "empty": np.zeros(0),
        "parent": np.array([-1, 0, 70000], np.int32), "plain": [1, 0.1, None, "x"], "no": float("nan"),
    }  # fmt: skip
    found = unpacked(pack_page_data(data))
    assert found["a"].tobytes() == numbers.tobytes() and found["b"]["c"][0].tobytes() == numbers[::-1].tobytes()
    assert found["b"]["c"][1].tolist() == list(range(7)) and found["parent"].tolist() == [-1, 0, 70000]
    assert found["plain"] == [1, 0.1, None, "x"] and found["no"] is None and len(found["empty"]) == 0


def test_a_page_that_would_be_too_large_is_refused():
    noise = np.random.default_rng(1).random(250_000)
    with pytest.raises(ArtifactError, match=rf"expected a page of at most {MOST_BYTES} bytes, got \d+"):
        page(more=noise)


def test_the_page_itself_is_small():
    assert len(page().encode()) < 100_000


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("/home/me/net/a.py:12", "file-1:12"),
        ("at net/b.py:3, and C:\\Users\\me\\c.py(4): f", "at file-1:3, and file-2(4): f"),
        ("See /srv/data/runs/7.", "See file-1."),
        ("aten.add.Tensor, 1/2 samples/s, blocks.0.fc, a::b", "aten.add.Tensor, 1/2 samples/s, blocks.0.fc, a::b"),
        ("model.onnx and trace.json.gz", "file-1 and file-2"),
    ],
)  # fmt: skip
def test_paths_are_left_out(text, without):
    assert without_paths([text]) == [without]
