"""The benchmark of construction against Sokoban: its arithmetic, the rules it names, one operator of each device."""

import json
from dataclasses import replace

import pytest

import roller
from benchmarks.sokoban import report
from benchmarks.sokoban.__main__ import main
from benchmarks.sokoban.compare import Compared, compare
from benchmarks.sokoban.rules import IN_POOL, excluding_rules
from roller import ops
from roller.construction.explicit_tiles import program_from_tiles

V100, CPU = roller.load_spec("v100"), roller.load_spec("cpu-avx512")
OPTIONS = roller.ConstructOptions()


def compared(name, ratio, considered=10, rules=()):
    return Compared(name, ratio, 1.0, considered, 1000, 5, 50, 0.01, 1.0, "mine", "best", tuple(rules))


def test_limits_are_judged_over_the_evaluation_alone():
    records = [compared("M1", 1.0), compared("M2", 1.2), compared("C0", 1.0, 100), compared("128x256x256", 9.0)]
    found = {v.name.split(", ")[-1]: v.word for v in report.verdicts(records, "gpu") if "in full" not in v.name}
    assert found["geometric mean"] == "missed" and found["M1"] == "holds" and found["M2"] == "missed"
    assert found["class M"] == "holds" and found["class C"] == "missed" and found["class D"] == "not measured"
    assert found["128x256x256"] == "missed" and found["seconds of one processor to enumerate 4096^3"] == "not measured"
    priced = {v.name[-1]: v.word for v in report.verdicts(records, "cpu") if "priced in full" in v.name}
    assert priced == {"M": "missed", "C": "missed", "D": "not measured"}, "10 times more are not 20"
    assert len(report.verdicts(records, "cpu")) == len(found) + len(priced) - 1
    assert report.times_more(records[:2]) == pytest.approx(100)


def test_worse_operators_are_listed_with_their_rules():
    records = [compared("M1", 1.1, rules=["pool"]), compared("M2", 1.3, rules=["pool", "x"]), compared("E0", 1.0)]
    assert report.rule_rows(records) == [("pool", "2", "1.300", "M1, M2")]
    assert [r[:3] for r in report.worse_rows(records)] == [("M2", "1.300", "pool; x"), ("M1", "1.100", "pool")]
    text = report.as_markdown({"v100": ("gpu", records)})
    assert "| M2 | 1.300 | pool; x | mine | best |" in text and "| E | 1 |" in text


@pytest.mark.parametrize(
    ("shared", "register", "rule"),
    [
        ({"i": 21, "j": 28, "k": 16}, {"i": 3, "j": 4}, "alignment: execution unit"),
        ({"i": 80, "j": 160, "k": 16}, {"i": 5, "j": 5}, "register tile: sizes"),
        ({"i": 128, "j": 64, "k": 48}, {"i": 8, "j": 8}, "reduction step: sizes"),
    ],
)
def test_the_rule_that_excludes_a_gpu_program_is_named(shared, register, rule):
    program = program_from_tiles(ops.matmul(4096, 4096, 4096), V100, {"shared": shared, "register": register})
    assert excluding_rules(program, V100, OPTIONS)[0].startswith(rule)


@pytest.mark.parametrize("spec", [V100, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize(
    "expr", [ops.matmul(256, 256, 256), ops.reduce("sum", (64, 512), axes=(1,)), ops.elementwise("relu", (1 << 16,))]
)
def test_nothing_excludes_what_construction_finds(expr, spec):
    for c in roller.construct(expr, spec, top_k=3):
        assert excluding_rules(replace(c.program, relaxed=()), spec, OPTIONS) == (IN_POOL,)


@pytest.mark.parametrize(
    ("register", "task", "rule"),
    [
        ({"i": 4, "j": 80}, {"i": 4, "j": 80}, "micro-kernel: numbers of vectors"),
        ({"i": 9, "j": 32}, {"i": 9, "j": 32}, "micro-kernel: numbers of rows"),
        ({"i": 1, "j": 16}, {"i": 1, "j": 16}, "micro-kernel: the best few"),
        ({"i": 12, "j": 32}, {"i": 36, "j": 32}, "tasks: sizes"),
    ],
)
def test_the_rule_that_excludes_a_cpu_program_is_named(register, task, rule):
    tiles = {"register": register, "l1": {"k": 4096}, "l2": {**task, "k": 4096}}
    program = program_from_tiles(ops.matmul(4096, 4096, 4096), CPU, tiles)
    assert excluding_rules(program, CPU, OPTIONS)[0].startswith(rule)


def test_both_policies_are_counted():
    found = compare("x", ops.matmul(128, 256, 256), V100)
    assert found.ratio >= 1 and found.sokoban_considered > 10 * found.roller_considered
    assert 0 < found.roller_priced <= found.roller_considered and found.sokoban_priced > 0
    assert bool(found.rules) == (found.ratio > 1.02)


def test_a_filtered_run_writes_where_it_is_told(tmp_path, capsys):
    main("cpu-avx512", "R3", tmp_path)
    main("v100", "R3", tmp_path)
    data = json.loads((tmp_path / "sokoban.json").read_text())
    assert {n: [r["id"] for r in d["operators"]] for n, d in data.items()} == {"cpu-avx512": ["R3"], "v100": ["R3"]}
    text = (tmp_path / "sokoban.md").read_text()
    assert "## cpu-avx512" in text and "R3 " in capsys.readouterr().out
    (tmp_path / "sokoban.md").unlink()
    main(out=tmp_path, replay=True)
    assert (tmp_path / "sokoban.md").read_text() == text
