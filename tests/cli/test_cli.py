"""The command line: tables for people, JSON for scripts, one line and exit code 1 for an error."""

from __future__ import annotations

import json
import re

import pytest

import roller
from roller.cli.main import main
from roller.cli.shared_options_and_tables import UsageError, parse_tiles, print_json, seconds
from tests.offenders import every

MATMUL = "matmul(m=64, n=96, k=32)"


def test_version(cli):
    assert cli("--version") == (0, f"roller {roller.__version__}\n", "")


def test_devices_lists_all_with_their_sources(cli):
    code, out, _ = cli("devices")
    assert code == 0
    for name in (*roller.list_specs(), "cpu"):
        assert f" {name} " in out
    assert "measured" in out


def test_devices_json(cli):
    code, out, _ = cli("devices", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["v100"]["bandwidth_bytes_per_s"] == 8.26e11
    assert rows["v100"]["target"] == {"arch": "sm_70", "language": "cuda"}


def test_show_prints_every_number_with_unit_and_source(cli):
    code, out, _ = cli("devices", "--show", "v100")
    assert code == 0
    for path in roller.load_spec("v100").values():
        assert path in out
    line = next(x for x in out.splitlines() if "global.bandwidth_bytes_per_s" in x)
    assert line.split()[1:] == ["8.26e+11", "bytes/s", "measured"]


def test_set_overrides_and_is_labelled(cli):
    code, out, _ = cli("devices", "--show", "v100", "--json", "--set", "units=40", "--set", "clock_hz=1.5e9")
    values = json.loads(out)["values"]
    assert code == 0
    assert values["units"] == {"value": 40, "source": "override"}
    assert values["clock_hz"] == {"value": 1.5e9, "source": "override"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("devices", "--show", "v10"), "device 'v10': unknown; did you mean 'v100'?"),
        (("devices", "--show", "v100", "--set", "unit=4"), "v100: unit: unknown field; did you mean 'units'?"),
        (("devices", "--show", "v100", "--set", "foo=3"), "expected one of ['accuracy', 'clock_hz', 'compute', 'exec"),
        (
            ("devices", "--show", "v100", "--set", "execution.foo=3"),
            "unknown field; execution has ['async_copy_bytes', ",
        ),
        (("devices", "--show", "v100", "--set", "execution.lanch_s=3"), "did you mean 'execution.launch_s'?"),
        (("devices", "--show", "v100", "--set", "memory_layers.dram.banks=3"), "memory_layers has ['global', 'l2', "),
        (("devices", "--show", "v100", "--set", "launch_s=3"), "unknown field; did you mean 'execution.launch_s'?"),
        (("devices", "--show", "v100", "--set", "units=-4"), "v100: units: expected a value of at least 1 units"),
        (("construct", "matmull(1, 2, 3)", "-d", "v100"), "unknown operator; did you mean 'matmul'?"),
        (("construct", "matmul(0, 2, 3)", "-d", "v100"), "matmul"),
        (("construct", "__import__('os')", "-d", "v100"), "operator"),
        (("construct", MATMUL, "-d", "v100", "--set", "l2=1"), "v100: l2: unknown field"),
        (("compile", MATMUL, "--out", "no/such/folder/kernel.json"), "does not exist. Create it first."),
        (("compile", MATMUL, "--out", "."), "expected a file, got a folder."),
        (("predict", MATMUL, "-d", "k80", "--tile", "shard=i:4"), "shard"),
    ],
)
def test_errors_are_one_line_on_standard_error(cli, arguments, message):
    code, out, err = cli(*arguments)
    assert code == 1
    assert out == ""
    assert err.startswith("roller: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@every(
    ("arguments", "message"),
    [
        (("devices", "--set", "units=4"), "--set: expected --show DEVICE beside it."),
        (("devices", "--show", "v100", "--set", "units"), "--set: expected FIELD=NUMBER, got 'units' without '='."),
        (("devices", "--show", "v100", "--set", "units=x"), "--set: expected FIELD=NUMBER, got 'units=x'."),
        (("predict", MATMUL, "-d", "k80", "--tile", "shared=i-4"), "--tile: expected LAYER=AXIS:EXTENT"),
        (("compile-model", "m.onnx", "--fallback", "onnxrutime"), "expected 'onnxruntime', got 'onnxrutime'"),
        (("check", "m.onnx", "--fallback", "x"), "--fallback: expected 'onnxruntime', got 'x'"),
        (("probe", "cuda:0", "--device", "v100"), "--device: expected --bundle DIR beside it"),
        (("compile-model", "m.onnx", "-d", "cuda:0", "--set", "units=4"), "--set: expected the name of a spec"),
    ],
)
def test_values_that_an_option_does_not_take_are_exit_code_2(cli, arguments, message):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("roller: error: ") and message in err and err.count("\n") == 1


def test_wrong_usage_is_exit_code_2(cli):
    assert cli("construct")[0] == 2
    assert cli("construct", MATMUL, "--top-k", "0")[0] == 2
    assert cli("nonsense")[0] == 2


def test_construct_json_is_ranked_by_prediction(cli):
    code, out, _ = cli("construct", MATMUL, "--device", "v100", "--top-k", "4", "--json")
    rows = json.loads(out)["candidates"]
    assert code == 0
    assert len(rows) == 4
    assert [r["predicted_s"] for r in rows] == sorted(r["predicted_s"] for r in rows)
    assert len({r["id"] for r in rows}) == 4
    assert all(set(r["tiles"]) == {"register", "shared"} for r in rows)
    assert all(r["measured_s"] is None for r in rows)


def test_what_a_program_does_beyond_tiling_is_named(cli):
    product = "matmul(1024, 1024, 1024, dtype='float16')"
    table = cli("construct", product, "--device", "a100", "--top-k", "1")[1]
    best = json.loads(cli("construct", product, "--device", "a100", "--top-k", "1", "--json")[1])["candidates"][0]
    assert best["mechanisms"][0] == "mma.m16n8k16.f16.f32"
    assert "with" in table and "mma.m" in table
    relu = "elementwise('relu', (4096, 4096))"
    assert json.loads(cli("construct", relu, "-d", "k80", "-k", "1", "--json")[1])["candidates"][0]["mechanisms"] == []
    assert "with" not in cli("construct", relu, "-d", "k80", "-k", "1")[1]


def test_construct_table_says_predicted(cli):
    code, out, _ = cli("construct", MATMUL, "--device", "v100", "--top-k", "2")
    assert code == 0
    assert f"{roller.ops.parse(MATMUL)} on " in out, "the brackets of an expression are no markup"
    assert "predicted, not measured" in out
    assert "register tile" in out
    assert "shared tile" in out


def test_construct_says_what_cannot_run(cli):
    """Programs of tensors that kernels cannot index, or the device not hold, are priced and noted."""
    big = "matmul(65536, 65536, 64)"
    for product, notes in ((big, 2), ("matmul(65536, 32768, 64)", 1), ("matmul(65536, 32000, 64)", 0)):
        found = json.loads(cli("construct", product, "-d", "v100", "-k", "2", "--json")[1])
        assert len(found["candidates"]) == 2 and len(found["notes"]) == notes
    code, out, _ = cli("construct", big, "-d", "v100", "-k", "1")
    assert code == 0 and "'C' has 4,294,967,296 elements: offsets in kernels are 32 bits wide" in out
    assert "take 17,213,423,616 bytes, global memory of v100 has 16,913,530,880" in out
    code, _, err = cli("compile", big, "-d", "v100", "-k", "2", "--no-cache")
    assert code == 1 and "2 x failed: cuda: tensor 'C'" in err and err.rstrip().endswith("32 bits wide.")


def test_winograd_is_named_with_its_accuracy(cli):
    conv = "conv2d(32, 64, 28, 28, 64, 3, 3, padding=1)"
    note = "root mean square error 0.2 to 3.2 times that of a direct sum"
    code, out, _ = cli("construct", conv, "--device", "v100", "--top-k", "5")
    assert code == 0 and "winograd2, winograd4: Winograd's algorithm" in out and note in out
    rows = json.loads(cli("construct", conv, "--device", "v100", "--top-k", "5", "--json")[1])["candidates"]
    assert [note in r.get("accuracy", "") for r in rows] == ["winograd" in r["program"] for r in rows]
    assert "Winograd" not in cli("construct", MATMUL, "--device", "v100", "--top-k", "5")[1]
    code, out, _ = cli("compile", conv, "--device", "v100", "--top-k", "1")
    assert code == 0 and note in out


def test_a_slower_device_predicts_a_longer_time(cli):
    big = "matmul(m=4096, n=4096, k=4096)"
    fast = json.loads(cli("construct", big, "-d", "v100", "-k", "1", "--json")[1])
    slow = json.loads(cli("construct", big, "-d", "v100", "-k", "1", "--json", "--set", "clock_hz=6.9e8")[1])
    assert slow["candidates"][0]["predicted_s"] > 1.3 * fast["candidates"][0]["predicted_s"]


def test_predict_prints_every_term(cli):
    arguments = (
        "predict",
        "matmul(512, 512, 512)",
        "-d",
        "k80",
        "-t",
        "shared=i:64,j:64,k:8",
        "-t",
        "register=i:4,j:4",
    )
    code, out, _ = cli(*arguments, "--json")
    data = json.loads(out)
    assert code == 0
    expected = roller.predict(
        roller.ops.matmul(512, 512, 512), device="k80",
        tiles={"shared": {"i": 64, "j": 64, "k": 8}, "register": {"i": 4, "j": 4}},
    )  # fmt: skip
    assert data["predicted_s"] == expected.seconds
    assert data["terms"] == expected.terms
    text = cli(*arguments)[1]
    assert f"bound by {expected.bottleneck}" in text
    assert (data["expected_error"], tuple(data["interval_s"])) == (expected.expected_error, expected.interval_s)
    assert f"({seconds(expected.interval_s[0])} to {seconds(expected.interval_s[1])})" in text
    assert all(name in text for name in expected.terms)


def test_compile_for_this_cpu_measures_and_saves(cli, tmp_path):
    path = tmp_path / "kernel.json"
    code, out, err = cli("compile", MATMUL, "--device", "cpu", "--top-k", "2", "--json", "--out", str(path))
    assert code == 0, err
    data = json.loads(out)
    best = next(c for c in data["candidates"] if c["id"] == data["best"])
    assert best["measured_s"] > 0
    assert best["predicted_s"] > 0
    assert roller.load(path).artifact.program.to_dict()["kind"] == "cpu"


def test_compile_for_a_device_that_is_not_here_measures_nothing(cli):
    code, out, _ = cli("compile", MATMUL, "--device", "v100", "--top-k", "2", "--source")
    assert code == 0
    assert "not measured" in out
    assert "__global__" in out


def test_times_for_people():
    assert [seconds(x) for x in (2.0, 0.01099, 9.9e-4, 1e-9)] == ["2 s", "10.99 ms", "990 us", "0.001 us"]


@every("text", ["shared", "shared=", "shared=i:x", "shared=i:4,8", "shared=a,b"])
def test_wrong_tiles(text):
    with pytest.raises(UsageError, match=r"--tile: expected LAYER=AXIS:EXTENT,\.\.\. or LAYER=EXTENT"):
        parse_tiles([text])


def test_top_k_auto_prints_what_would_be_timed(cli):
    code, out, err = cli("construct", MATMUL, "--device", "v100", "--top-k", "auto", "--json")
    assert code == 0, err
    expected = roller.construct(roller.ops.parse(MATMUL), "v100", top_k="auto")
    assert [r["id"] for r in json.loads(out)["candidates"]] == [c.id for c in expected]
    for word in ("some", "0", "-3", "1.5"):
        assert cli("construct", MATMUL, "--top-k", word)[0] == 2


def test_deterministic_says_that_nothing_was_timed(cli):
    code, out, err = cli("compile", MATMUL, "--device", "null:v100", "--deterministic")
    assert code == 0, err
    assert "built and checked, not timed" in out
    assert "checked (best)" in out
    assert cli("compile", MATMUL, "--device", "v100", "--refine", "2")[0] == 1
    assert "refine_s: expected none beside" in cli("compile", MATMUL, "--deterministic", "--refine", "2")[2]


def test_refine_prints_what_the_search_tried(cli):
    few = json.loads(cli("compile", MATMUL, "--device", "null:v100", "-k", "1", "--json")[1])
    more = json.loads(cli("compile", MATMUL, "--device", "null:v100", "-k", "1", "--refine", "1", "--json")[1])
    assert len(few["candidates"]) == 1 < len(more["candidates"])


def test_numbers_of_a_device_that_is_here_can_be_set(cli):
    words = ("compile", MATMUL, "--device", "null:v100", "-k", "1", "--json")
    plain, slow = (json.loads(cli(*words, *more)[1]) for more in ((), ("--set", "execution.launch_s=0.5")))
    assert plain["candidates"][0]["predicted_s"] < 0.5 < slow["candidates"][0]["predicted_s"]
    constructed = json.loads(cli("construct", MATMUL, "--device", "null:v100", "-k", "1", "--json")[1])
    assert constructed["candidates"][0]["predicted_s"] == plain["candidates"][0]["predicted_s"]


@pytest.mark.parametrize("device", ["v100", "cpu-avx512"])
def test_every_name_that_construct_prints_is_predicted_alike(cli, device):
    code, out, err = cli("construct", MATMUL, "-d", device, "-k", "3")
    assert code == 0, err
    candidates = json.loads(cli("construct", MATMUL, "-d", device, "-k", "3", "--json")[1])["candidates"]
    names = re.findall(rf"^ +\d+ ({roller.load_spec(device).kind}/.*)$", out, re.MULTILINE)
    assert names == [c["program"] for c in candidates]
    for c in candidates:
        code, out, err = cli("predict", MATMUL, "-d", device, "--program", c["program"], "--json")
        assert code == 0, err
        assert json.loads(out)["terms"] == c["terms"] and json.loads(out)["predicted_s"] == c["predicted_s"]


def test_predict_takes_tiles_or_a_name(cli):
    tiles = ("-t", "shared=32,32,8", "-t", "register=4,4,1")
    plain, ring = (json.loads(cli("predict", MATMUL, "-d", "h200", *tiles, *how, "--json")[1])["predicted_s"]
                   for how in ((), ("--stages", "3", "--split-k", "2")))  # fmt: skip
    assert plain != ring
    for wrong in ((), (*tiles, "--program", "gpu/tiled")):
        code, _, err = cli("predict", MATMUL, "-d", "v100", *wrong)
        assert code == 2 and "one of the two" in " ".join(err.split())
    assert "expected 'gpu/STRUCTURE'" in cli("predict", MATMUL, "-d", "v100", "--program", "x")[2]


def test_explain_tells_the_best_program_and_one_that_is_named(cli):
    code, out, err = cli("explain", MATMUL, "-d", "v100")
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 80
    for title in ("Construction", "Why nothing is larger", "The predicted time, term by term", "Under the roofline"):
        assert f"\n{title}\n" in out
    data = json.loads(cli("explain", MATMUL, "-d", "v100", "--json")[1])
    candidates = json.loads(cli("construct", MATMUL, "-d", "v100", "--json")[1])["candidates"]
    assert (data["program"], data["predicted_s"]) == (candidates[0]["program"], candidates[0]["predicted_s"])
    assert data["time"]["value"] == data["predicted_s"] and data["rank"] == 1
    other = json.loads(cli("explain", MATMUL, "-d", "v100", "--json", "--program", candidates[2]["program"])[1])
    assert (other["rank"], other["predicted_s"]) == (3, candidates[2]["predicted_s"])


def test_explain_says_why_not_another(cli):
    best = json.loads(cli("construct", MATMUL, "-d", "h200", "--json")[1])["candidates"]
    name = json.loads(cli("explain", MATMUL, "-d", "h200", "--why-not", best[-1]["program"], "--json")[1])
    assert (name["predicted_s"], name["chosen_s"]) == (best[-1]["predicted_s"], best[0]["predicted_s"])
    tiles = "shared=i:32,j:32,k:8 register=4,4,1 stages=2 split_k=2"
    of_tiles = json.loads(cli("explain", MATMUL, "-d", "h200", "--why-not", tiles, "--json")[1])
    how = ("-t", "shared=i:32,j:32,k:8", "-t", "register=4,4,1", "--stages", "2", "--split-k", "2")
    assert of_tiles["predicted_s"] == json.loads(cli("predict", MATMUL, "-d", "h200", *how, "--json")[1])["predicted_s"]
    code, out, err = cli("explain", MATMUL, "-d", "h200", "--why-not", "shared=4096,4096,64 register=1,1,1")
    assert code == 0, err
    assert "illegal: tiles: the block has 16777216 threads" in " ".join(out.split())
    assert "expected a whole number" in cli("explain", MATMUL, "--why-not", "register=1,1,1 stages=x")[2]
    code, _, err = cli("explain", MATMUL, "--program", "x", "--why-not", "y")
    assert code == 2 and "--why-not" in err


def test_sensitivity_of_an_operator_and_of_a_file(cli, tmp_path):
    operator = "elementwise('relu', (4096, 4096))"
    code, out, err = cli("sensitivity", operator, "--device", "v100")
    assert code == 0, err
    assert "enlarge first: memory_layers.global.bandwidth_bytes_per_s" in out
    assert "could be smaller, each alone: " in out
    (setting,) = re.findall(r"roller construct (--set \S+) shows it", out)
    shown = json.loads(cli("construct", operator, "-d", "v100", "--json", *setting.split())[1])["candidates"][0]
    data = json.loads(cli("sensitivity", operator, "-d", "v100", "--json")[1])
    assert data["enlarge"] == "memory_layers.global.bandwidth_bytes_per_s"
    effect = next(e for e in data["effects"] if e["field"] == data["enlarge"])
    change = next(c for c in effect["changes"] if c["value"] == data["enlarge_to"])
    assert shown["predicted_s"] == change["predicted_s"][0] < data["predicted_s"][0]
    slower = json.loads(cli("sensitivity", operator, "-d", "v100", "--json", "--set", "clock_hz=2e8")[1])
    effect = [{e["field"]: e["percent_per_percent"] for e in d["effects"]}.get("clock_hz", 0) for d in (data, slower)]
    assert effect[1] < effect[0], "at a low clock the arithmetic of a stream begins to count"
    rows = "operators:\n  - {id: A, op: matmul, M: 64, N: 64, K: 64}\n  - {id: B, op: matmul, M: 64, N: 32, K: 64}\n"
    (tmp_path / "mine.yaml").write_text(rows)
    data = json.loads(cli("sensitivity", str(tmp_path / "mine.yaml"), "-d", "v100", "--json", "--filter", "*")[1])
    assert len(data["predicted_s"]) == 2
    assert "mine.yaml" in cli("sensitivity", str(tmp_path / "mine.yaml"), "-d", "v100")[1]
    assert "matches none of 2 operators" in cli("sensitivity", str(tmp_path / "mine.yaml"), "--filter", "Z")[2]
    assert "'Z*' matches none" in cli("sensitivity", str(tmp_path / "mine.yaml"), "--filter", "*,Z*")[2]


def test_doctor_says_what_it_lacks(cli):
    code, out, err = cli("doctor", "--device", "h200")
    assert code == 0, err
    assert "cannot tell: expected at least" in out
    out = cli("doctor", "--device", "h200", "--json")[1]
    assert "NaN" not in out  # JSON has no such number
    data = json.loads(out)
    assert data["bias"] is None and data["residual"] is None
    assert (data["finding"], data["records"], data["outdated_kernels"]) == (None, 0, 0)


def test_construct_says_what_it_took_where_asked(cli):
    arguments = ("construct", MATMUL, "-d", "v100", "-k", "3")
    code, out, _ = cli(*arguments, "--stats", "--json")
    assert code == 0 and json.loads(out)["stats"]["processor_s"] > 0
    code, out, _ = cli(*arguments, "--stats")
    assert code == 0 and " s of one processor" in out
    assert "stats" not in json.loads(cli(*arguments, "--json")[1])


def test_json_has_no_number_that_is_none(capsys):
    print_json({"a": [1.5, float("inf"), {"b": float("nan")}], "c": (-float("inf"), "NaN", True, None)})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": [1.5, None, {"b": None}], "c": [None, "NaN", True, None],
    }  # fmt: skip


@every(
    "words",
    [
        ("compile", "matmul(64,64,64)", "--out", "x" * 5000),
        ("compile", "matmul(64,64,64)", "--out", "x" * 5000 + "/a"),
        ("run-model", "x" * 5000),
        ("cache", "export", "x" * 5000),
        ("compile", "matmul(64,64,64)", "--top-k", "9" * 5000),
    ],
)
def test_words_too_long_are_one_clear_error(capsys, words):
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    told = capsys.readouterr().err
    assert stop.value.code in (1, 2) and len(told) < 2000
    assert "Traceback" not in told and ("File name too long" in told or "whole number" in told)
