"""What the pages show of profiles is what a profile says today, and the example of the format can be read."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from roller.cli.profile_tables import headline
from roller.insight.step_profile.profile_json import FORMAT, VERSION, from_data, to_data
from roller.insight.step_profile.profiling import profile
from tests.docs.pages import DOCS, ROOT, blocks_of

FORMAT_PAGE = DOCS / "profile-json.md"


def test_the_example_of_the_format_is_a_profile():
    (text,) = [block.text for block in blocks_of(FORMAT_PAGE) if block.language == "json"]
    data = json.loads(text)
    found = from_data(data)
    assert (data["format"], data["version"]) == (FORMAT, VERSION)
    assert (found.total_bytes, found.iteration_s, found.line("train.py:7").registered_bytes) == (4096, 0.003, 4096)
    assert to_data(found)["nodes"] == data["nodes"]


def test_the_page_of_the_format_names_every_key():
    page = FORMAT_PAGE.read_text(encoding="utf-8")
    kept = json.loads((ROOT / "tests/insight/step_profile/version_1.json").read_text(encoding="utf-8"))
    keys = {*to_data(from_data(kept)), *(key for node in kept["nodes"] for key in node)}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


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
    for page in (ROOT / "README.md", DOCS / "index.md", DOCS / "guides" / "profile.md"):
        assert headline(found) in " ".join(page.read_text(encoding="utf-8").split()), f"{page.name}: run the command"
