"""Reports in a real browser with the network cut: no error, no request, no serious finding of axe.

Needs Chromium, Node and ``make browser``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import roller
from roller.artifact import KernelArtifact
from roller.insight.rate_card import HourlyRate
from roller.insight.step_profile.difference import LineDifference, difference
from roller.insight.step_profile.hints_difference_json import hints_and_difference_data
from roller.insight.step_profile.node import Node, Seconds
from roller.insight.step_profile.profile_html_page import profile_html
from roller.insight.step_profile.profile_json import load_profile
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.step_profile.what_if_hints import Hint
from roller.insight.whatif.memory_effect import MemoryEffect
from roller.page.html_page import html_page
from roller.report.benchmark_report import page_of_benchmark
from roller.report.compiled_model_html_report import model_data
from roller.report.kernel_report import page_of_kernel
from roller_runtime.plan.program_steps import Copy, Run
from tests.insight.step_profile.profiles import large_profile, small_profile

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LABELS = {"measured", "predicted", "calibrated", "recorded"}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or shutil.which("node") is None, reason="needs Chromium and Node"),
    pytest.mark.skipif(not (HERE / "node_modules" / "playwright-core").is_dir(), reason="needs `make browser`"),
]


def opened(page: str, folder: Path, script: str = ""):
    """Return what a page shows at 1280 pixels in light, where a script acts on it, and at 390 in dark."""
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    words = ["node", HERE / "open_page.js", path, *([HERE / script] if script else [])]
    done = subprocess.run(
        words, env={**os.environ, "ROLLER_CHROMIUM": str(CHROMIUM)}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for look in found:
        clean = {"errors": [], "requests": [], "violations": [], "sideways": False}
        assert {name: look[name] for name in clean} == clean, (look["width"], look["colorScheme"])
        assert look["ready"] > 0
    return found[0]["found"]


@pytest.fixture(scope="module")
def drilled(tmp_path_factory):
    """Return a profile, and what its page showed."""
    profile = small_profile()
    return profile, opened(profile_html(profile), tmp_path_factory.mktemp("page"), "drill_down.js")


def test_the_tree_is_gone_into_by_mouse(drilled):
    _, found = drilled
    assert found["start"] == ["step"] and len(found["clicked"]) > 1
    assert found["escaped"] == found["clicked"][:-1]


def test_the_tree_is_gone_into_by_keys_alone(drilled):
    profile, found = drilled
    nodes = list(profile.root.walk())
    keys = dict(enumerate(found["keys"]))
    assert all(row["focused"] for row in keys.values())
    assert [keys[n]["node"] for n in (0, 1, 2)] == [0, 1, 2], "down to the first child, and its first child"
    assert keys[3]["crumbs"] == 3 and keys[7]["crumbs"] == 2, "Enter goes in, Escape goes up"
    assert all(row["value"] == nodes[row["node"]].wall_s for row in keys.values())


def test_the_tree_and_the_tables_hold_the_numbers_of_the_profile(drilled):
    profile, found = drilled
    nodes = list(profile.root.walk())
    assert [value for _, value in found["time"]] == [nodes[n].wall_s for n, _ in found["time"]]
    assert [value for _, value in found["memory"]] == [nodes[n].total_held_bytes for n, _ in found["memory"]]
    assert {line.name: line.wall_s for line in profile.lines} == dict(found["tables"]["lines"])
    assert list(found["tables"]) == ["lines", "operators", "kernels", "modules"]
    assert found["moments"] == [p.allocated_bytes for p in (profile.memory_curve[0], profile.memory_curve[-1])]
    assert found["marked"] > 0


def test_every_number_says_where_it_comes_from(drilled):
    profile, found = drilled
    numbers = found["numbers"]
    assert len(numbers) > 60 and {n["label"] for n in numbers} == {"predicted", "recorded"} <= LABELS
    assert all(float(n["value"]) == float(n["value"]) for n in numbers)
    steps = {(float(n["value"]), float(n["lower"]), float(n["upper"])) for n in numbers if n["interval"] == "known"}
    assert (profile.iteration_s, profile.lower_s, profile.upper_s) in steps and len(steps) > 10
    totals = {float(n["value"]) for n in numbers if "lower" in n and n["unit"] == "bytes"}
    assert totals == {float(profile.total_bytes)}


def test_hints_and_a_difference_stand_in_tables_and_lead_to_their_lines(tmp_path):
    profile = small_profile()
    line, made = "net/model.py:10", "net/model.py:3"  # that registers weights alone has no part of the tree
    shared = {"iteration_s": 0.004, "lower_s": 0.003, "upper_s": 0.005, "delta_s": -0.002, "line": line}
    hints = [
        Hint("AMP()", **shared, memory=MemoryEffect(-(1 << 30)), rests_on="predicted"),
        Hint("CudaGraph()", **{**shared, "delta_s": 1e-6}, is_hardly_anything=True, rests_on="assumed"),
        Hint("LoaderWorkers()", not_asked="no loading"),
        Hint("pad 999 -> 1000 (fc.weight)", **shared, origin="lint", rests_on="predicted"),
    ]  # fmt: skip
    rate = HourlyRate(2.5, "mine", "2020-01-31")
    compared = difference(replace(small_profile(), source="recorded"), profile)
    moved = replace(
        compared,
        lines=(
            LineDifference(line, 1.0, 3.0, 1024, 2048),
            LineDifference(made, 0, 0, 0, 0, 1),
            LineDifference("net/model.py:11", 1.0, 1.0 + 1e-12, 64, 64),
        ),
    )
    parts = hints_and_difference_data(profile, [h.with_price(2.5, 8) for h in hints], moved, "EUR", rate)
    found = opened(profile_html(profile, parts=parts), tmp_path, "hints.js")
    assert found["heads"] == ["What-ifs", "Padded sizes"]
    rows = dict(zip([row[0] for row in found["rows"]], found["rows"], strict=True))
    assert rows["AMP()"][1:4] == ["4.000 ms", "-2.000 ms", "-1.000 GiB"]
    assert rows["CudaGraph()"][2:4] == ["+0.001 ms hardly anything", "not modelled"]
    assert "LoaderWorkers(): not asked: no loading" in found["text"] and "more than 180 days old" in found["text"]
    assert "EUR a million samples" in found["text"]
    assert found["chosen"].endswith(line)
    assert {n["label"] for n in found["numbers"]} == {"predicted", "recorded"}
    first, second = (x.removeprefix("net/") for x in (line, made))
    values = ["1.000 s", "3.000 s", "+2.000 s", "+1.000 KiB", ""]
    assert found["difference"] == [[first, *values], [second, "", "", "", "", "+1 s"]], (
        "what does not differ is left out"
    )
    assert found["links"] == [line, made], "a line that only registers weights leads to their module"


def test_a_table_of_50_000_rows_scrolls(tmp_path):
    found = opened(profile_html(large_profile(50_000)), tmp_path, "scroll.js")
    assert found["rows"] == 50_001 and found["last"] == 50_001 and found["drawn"] < 40
    assert found["perSecond"] >= 30, found
    assert found["first"] == "kernel_0" and found["left"] == "1 of 50000 rows"
    assert found["sort"] < 1000 and found["search"] < 1000


def test_a_page_of_hostile_names_runs_none_of_them(tmp_path):
    hostile = '</script><script>window.hurt=1</script><img src=x onerror="window.hurt=1">\u2028\u2029'
    leaf = Node("kernel", hostile, 1, {hostile: Seconds(0.5, 0.5, 0.0)}, {hostile: 4}, bound_s={hostile: 0.5})
    root = Node("step", "step", 1, leaf.seconds, leaf.held_bytes, children=(leaf,))
    profile = StepProfile(hostile, "recorded", hostile, root, 0.5, 0.5, 0.5, notes=(hostile,), out_of_memory=hostile)
    (tmp_path / "look.js").write_text("return page.evaluate(() => [window.hurt ?? null, document.images.length]);")
    assert opened(profile_html(profile), tmp_path, str(tmp_path / "look.js")) == [None, 0]


def test_an_older_profile_opens(tmp_path):
    old = HERE.parent / "insight" / "step_profile" / "version_1.json"
    opened(profile_html(load_profile(old)), tmp_path)


@pytest.fixture(scope="module")
def kernel_file(tmp_path_factory):
    """Return a kernel for a device that is not here."""
    path = tmp_path_factory.mktemp("kernel") / "kernel.json"
    roller.compile(roller.ops.matmul(256, 128, 64), device="v100", top_k=1).artifact.save(path)
    return path


def test_a_kernels_page_opens_its_terms(kernel_file, tmp_path):
    script = """
    await page.locator("details.terms > summary").nth(1).click();
    return page.evaluate(() => ({
      levels: Array.from(document.querySelectorAll(".tile"), (one) => one.getAttribute("aria-label")),
      terms: Array.from(document.querySelectorAll(".term-row .n"), (one) => Number(one.dataset.value)),
      labels: [...new Set(Array.from(document.querySelectorAll("main .n[data-value]"), (one) => one.dataset.label))],
      source: document.querySelector("pre").textContent.includes("__global__"),
    }));"""
    (tmp_path / "look.js").write_text(script)
    artifact = KernelArtifact.load(kernel_file)
    found = opened(page_of_kernel(artifact), tmp_path, str(tmp_path / "look.js"))
    assert found["levels"][0] == "whole: 256 of i by 128 of j" and len(found["levels"]) == 3
    assert found["terms"][0] == artifact.estimate["seconds"] and len(found["terms"]) > 4
    assert set(found["labels"]) == {"predicted", "recorded"} and found["source"]


def test_a_models_page_shows_the_kernel_that_is_chosen(kernel_file, tmp_path):
    artifact = KernelArtifact.load(kernel_file)
    steps = [Run("first", "a", ("x",), ("y",)), Run("second", "b", ("y",), ("z",)), Copy("z", "out", 1, 4)]
    artifacts = {"a": artifact, "b": replace(artifact, measured_s=2e-5, expression=roller.ops.matmul(8, 8, 8))}
    data = model_data("net", "v100", steps, artifacts, 0.0)
    (tmp_path / "look.js").write_text(
        """
        const shown = () => page.locator(".kernel-title").textContent();
        const found = [await shown()];
        await page.locator(".steps button", { hasText: "second" }).click();
        found.push(await shown(), await page.locator(".rows .row").count());
        found.push(await page.locator(".track:has(.fill-measured) + .n").first().getAttribute("data-value"));
        return found;"""
    )
    found = opened(html_page("net", data), tmp_path, str(tmp_path / "look.js"))
    assert found[0].startswith("Kernel: ") and found[2] >= 3 and float(found[3]) == 2e-5


def test_results_open(tmp_path):
    opened(page_of_benchmark(ROOT / "benchmarks" / "results" / "cpu.json"), tmp_path)
