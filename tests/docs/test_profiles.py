"""What the pages show of profiles is what a profile says today, and the example of the format can be read."""

from __future__ import annotations

import importlib.util
import json
import re
import sys

import pytest

from roller.insight.step_profile.profile_json import FORMAT, VERSION, profile_from_json_data, profile_to_json_data
from roller.insight.step_profile.profiling import profile
from tests.docs.pages import DOCS, ROOT, blocks_of

FORMAT_PAGE = DOCS / "profile-json.md"
SHOWN = (ROOT / "README.md", DOCS / "index.md", DOCS / "guides" / "profile.md")


def test_the_example_of_the_format_is_a_profile():
    (text,) = [block.text for block in blocks_of(FORMAT_PAGE) if block.language == "json"]
    data = json.loads(text)
    found = profile_from_json_data(data)
    assert (data["format"], data["version"]) == (FORMAT, VERSION)
    assert (found.total_bytes, found.iteration_s, found.line("train.py:7").registered_bytes) == (4096, 0.003, 4096)
    assert profile_to_json_data(found)["nodes"] == data["nodes"]


def test_the_page_of_the_format_names_every_key():
    page = FORMAT_PAGE.read_text(encoding="utf-8")
    kept = json.loads((ROOT / "tests/insight/step_profile/version_1.json").read_text(encoding="utf-8"))
    keys = {*profile_to_json_data(profile_from_json_data(kept)), *(key for node in kept["nodes"] for key in node)}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_pages_say_the_errors_of_forecasts_as_the_results_do():
    results = ROOT / "benchmarks" / "results"
    times = (results / "insight_time.md").read_text(encoding="utf-8")
    cases, error = re.search(r"^\| all \| (\d+) \| ([\d.]+) % \|", times, re.MULTILINE).groups()
    slowest = round(float(re.search(r"^\| t4 \| \d+ \| ([\d.]+) % \|", times, re.MULTILINE)[1]))
    memory = (results / "insight_memory.md").read_text(encoding="utf-8")
    pools = re.findall(r"(\d+) of \1 \|", memory)
    addresses = f"{sum(map(int, pools)):,} recorded allocations"
    assert len(pools) == 10
    for page in SHOWN:
        words = " ".join(page.read_text(encoding="utf-8").split())
        assert f"{cases} published cases" in words and f"off by {error} % on average" in words, page.name
        assert f"those of the T4 by {slowest} %" in words and addresses in words, page.name


def test_pictures_and_pages_show_the_profile_of_today():
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("profile_picture", DOCS / "profile_picture.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    del sys.modules[spec.name]
    found = profile(ROOT / module.ENTRY, module.DEVICE)
    shown = module.costs(found)
    assert sum(sum(phases.values()) for phases in shown.lines.values()) == pytest.approx(1e3 * found.iteration_s, 1e-3)
    for palette in module.PALETTES:
        text = (module.IMAGES / f"profile-{palette.name}.svg").read_text(encoding="utf-8")
        assert f"drawn from {shown.digest}" in text, "run `python docs/profile_picture.py` (extra bench)"
    for page in SHOWN:
        assert str(found) in " ".join(page.read_text(encoding="utf-8").split()), f"{page.name}: run the command"
