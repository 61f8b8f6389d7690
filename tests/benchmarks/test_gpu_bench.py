"""benchmarks/gpu without a GPU: rows, timing, the process around peers, and the whole way on a null device."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu import comparison, once, paired, plan, prepare, report
from benchmarks.gpu.run import main
from roller.errors import ArtifactError, ExprError
from roller.hardware import load_spec
from roller.runtime.bundle_format import Bundle

ROOT = Path(__file__).parents[2]


def test_every_row_builds_an_expression_of_the_published_work():
    import roller

    planned = prepare.rows()
    assert len({p.id for p in planned}) == len(planned) == 119 + 44 + 14
    sets = {s: [p.id for p in planned if s in p.sets] for p in planned for s in p.sets}
    assert len(sets["all 119"]) == 119 and len(sets["scale_relu"]) == 7
    assert sets["tensorcore"] == ["TC_M3", "TC_M4", "TC_M5", "TC_M6"]
    assert sets["small"] == ["M1", "M2"] and "C36" in sets["irregular"]
    for p in planned:
        expr = roller.ops.from_spec(p.row)
        assert all(t.dtype == p.row["dtype"] for t in expr.inputs)
        if p.row["op"] == "matmul":
            assert p.row["flops"] == 2 * p.row.get("batch", 1) * p.row["M"] * p.row["N"] * p.row["K"]


def test_unknown_ids_are_refused():
    with pytest.raises(ExprError, match="none of 177"):
        prepare.rows("Z*")


def test_batch_is_halved_until_time_and_memory_allow_and_the_note_says_so():
    v100 = load_spec("v100")
    (large,) = prepare.rows("SC_8192")
    done = prepare.fitted(large, v100)
    assert done.row["N"] < 8192 and done.row["flops"] * (8192 // done.row["N"]) == large.row["flops"]
    assert f"batch divided by {8192 // done.row['N']}: 9.9 GB of inputs and outputs in 16 GB" in done.notes
    (small,) = prepare.rows("M2")
    assert prepare.fitted(small, v100) == small


def test_an_odd_batch_that_does_not_fit_is_left_out_with_the_reason():
    row = {"id": "X", "op": "elementwise", "fn": "relu", "dtype": "float32", "shape": [3, 1 << 30], "flops": 3 << 30}
    done = prepare.fitted(plan.Planned(row, ("x",)), load_spec("v100"))
    assert "25.8 GB" in done.left_out


def test_sides_are_timed_in_turn_and_ratios_are_of_one_round():
    order, clock = [], iter(range(1, 1000))

    def side(name, factor):
        def sample():
            order.append(name)
            drift = next(clock)  # the machine slows down steadily; paired ratios do not see it
            return factor * (1 + drift / 1000)

        return sample

    found = paired.compare({"ours": side("ours", 1.0), "theirs": side("theirs", 3.0)}, budget_s=0)
    assert order[:4] == ["ours", "theirs", "theirs", "ours"]
    assert found["theirs"].ratio == pytest.approx(3.0, rel=2e-3)
    assert found["ours"].rounds == 7 and found["theirs"].spread < 0.02


def fake_worker(tmp_path, body):
    """A worker without PyTorch: ``body`` runs for every task, ``say`` answers."""
    path = tmp_path / "worker.py"
    path.write_text(
        "import json, os, sys, time\n"
        "def say(**m): print(json.dumps(m), flush=True)\n"
        "work = json.loads(sys.stdin.readline())\n"
        "say(event='ready', versions={'torch': '9'})\n"
        "for task in work['tasks']:\n"
        "    say(event='begin', key=task['key'])\n"
        f"    {body}\n"
        "    peer = {'name': 'torch', 'status': 'measured', 'reason': '', 'note': '', 'median_s': 2e-3, 'ratio': 2.0}\n"
        "    say(event='done', key=task['key'], peers=[peer])\n"
    )
    return [sys.executable, str(path)]


def tasks(*ids):
    planned = [plan.Planned({"id": i}, ("matmul",)) for i in ids]
    return comparison.tasks_of(planned, dict.fromkeys(ids, "first"))


def test_a_peer_that_dies_becomes_a_record_and_the_others_finish(tmp_path):
    command = fake_worker(tmp_path, "task['id'] == 'B' and os.kill(os.getpid(), 11)")
    journal = comparison.PeerJournal(tmp_path / "j", {"seed": 0})
    said = []
    reason = comparison.run_tasks(tasks("A", "B", "C"), {}, journal, time.monotonic() + 60, said.append, command)
    assert reason == "" and journal.versions == {"torch": "9"}
    assert [journal.records[f"{i}/functional"][0]["status"] for i in "ABC"] == ["measured", "crashed", "measured"]
    assert "signal 11" in journal.records["B/functional"][0]["reason"]
    # a later run knows all of it, and asks nobody
    again = comparison.PeerJournal(tmp_path / "j", {"seed": 0})
    assert again.records == journal.records
    assert comparison.run_tasks(tasks("A", "B", "C"), {}, again, time.monotonic() + 60, said.append, ["/no"]) == ""


def test_a_peer_that_hangs_is_ended_and_the_others_finish(tmp_path, monkeypatch):
    monkeypatch.setitem(comparison.LIMIT_S, "functional", 0.5)
    command = fake_worker(tmp_path, "task['id'] == 'A' and time.sleep(60)")
    journal = comparison.PeerJournal(tmp_path / "j", {})
    comparison.run_tasks(tasks("A", "B"), {}, journal, time.monotonic() + 60, print, command)
    assert "no answer within 0.5 s" in journal.records["A/functional"][0]["reason"]
    assert journal.records["B/functional"][0]["status"] == "measured"


def test_a_spent_budget_leaves_the_rest_for_the_next_run(tmp_path):
    command = fake_worker(tmp_path, "task['id'] == 'B' and time.sleep(60)")
    journal = comparison.PeerJournal(tmp_path / "j", {})
    start = time.monotonic()
    comparison.run_tasks(tasks("A", "B"), {}, journal, start + 4, print, command)
    assert time.monotonic() - start < 8 and set(journal.records) == {"A/functional"}


def test_a_worker_that_cannot_start_ends_the_peers_with_its_reason(tmp_path):
    journal = comparison.PeerJournal(tmp_path / "j", {})
    command = [sys.executable, "-c", "raise SystemExit('no such library')"]
    reason = comparison.run_tasks(tasks("A"), {}, journal, time.monotonic() + 60, print, command)
    assert "exit code 1: no such library" in reason and journal.records == {}


def test_the_real_worker_says_what_is_missing(tmp_path):
    try:
        import torch

        pytest.skip(f"PyTorch {torch.__version__} is here")
    except ImportError:
        pass
    journal = comparison.PeerJournal(tmp_path / "j", {})
    work = {"bundle": str(tmp_path), "index": 0, "seed": 0, "time_s": 0.1}
    reason = comparison.run_tasks(tasks("A"), work, journal, time.monotonic() + 60, print)
    assert reason == "No module named 'torch'"


def test_a_journal_that_a_kill_cut_off_goes_on_and_another_runs_is_refused(tmp_path):
    path = tmp_path / "j"
    comparison.PeerJournal(path, {"seed": 0}).add(key="A/functional", peers=[])
    with path.open("a") as file:
        file.write('{"key": "B/fun')
    journal = comparison.PeerJournal(path, {"seed": 0})
    assert set(journal.records) == {"A/functional"}
    journal.add(key="B/functional", peers=[])
    assert set(comparison.PeerJournal(path, {"seed": 0}).records) == {"A/functional", "B/functional"}
    with pytest.raises(ArtifactError, match="belongs to another run"):
        comparison.PeerJournal(path, {"seed": 1})


def test_report_counts_shares_by_the_peers_time_over_ours():
    peers = [{"name": "torch", "status": "measured", "reason": "", "note": "", "median_s": 2e-3, "ratio": 2.0}]
    slower = [{**peers[0], "ratio": 0.5}, {"name": "triton", "status": "failed", "reason": "no", "note": ""}]
    record = {
        "rank": 1,
        "candidate_id": "a",
        "status": "measured",
        "reason": "",
        "measured_s": 2e-3,
        "predicted_s": 1e-3,
    }
    row = {"op": "matmul", "dtype": "float16", "flops": 2_000_000_000}
    common = {"sets": ["matmul", "tensorcore"], "row": row, "notes": [], "left_out": "", "expression": "e"}
    second = {**record, "rank": 2, "candidate_id": "b", "measured_s": 1e-3}
    operators = [
        {**common, "id": "A", "candidates": [record, second], "best": "b", "best_s": 1e-3, "peers": peers},
        {**common, "id": "B", "candidates": [record], "best": "a", "best_s": 2e-3, "peers": slower},
    ]
    results = {
        "device": "d", "date": "today", "seconds": 1.0, "properties": {"versions": {}}, "versions": {"torch": "9"},
        "settings": {}, "measured": True, "complete": True, "peers": "measured", "operators": operators,
    }  # fmt: skip
    text = report.render(results, load_spec("h200"))
    assert "| matmul | 2 | 1.00 | 50 % | 50 % | 50 % | 50 % |" in text
    assert "| matmul | 2 | 3/3 | 0.707 | 50 % | 25 % |" in text
    assert "| A | e | 1 | 1 | 2 | 2.00 | 2 | 2.00 |" in text
    assert "- B: triton: failed: no" in text
    assert "| fp16 matmul, tensor cores against torch | >= 0.6 | 1.00 over 2 of 2 | holds |" in text
    assert "| depthwise against torch | >= 1.5 | none of 0 | not measured |" in text
    ceiling = 2 * load_spec("h200").ops_per_s("matrix", "float16")
    assert f"| A | 2 | {100 * 2e12 / ceiling:.0f} % | assumed |" in text


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    pytest.importorskip("tvm", reason="building a bundle needs TVM")
    folder = tmp_path_factory.mktemp("gpu") / "b"
    command = [sys.executable, "-m", "benchmarks.gpu", "prepare", "--device", "h200", "--out", str(folder), "--top-k",
               "2", "--filter", "E19,R3,EW0,TC_M4,P4", "--sources"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = Bundle(folder)
    best = next(found.load(e)[0][1] for e in found.operators if e.id == "TC_M4")
    noted = "TC_M4: float16 without matrix instructions" in done.stdout
    assert noted != bool(re.search(r"mma\.sync|wmma|wgmma", best.source))
    return folder


def run_script(bundle, out, *arguments):
    # From elsewhere and without PYTHONPATH: the script finds its own checkout.
    command = [sys.executable, str(ROOT / "benchmarks/gpu/run.py"), str(bundle), "--json", str(out), *arguments]
    return subprocess.run(command, cwd=out.parent, capture_output=True, text=True, check=False)


def test_the_whole_way_on_a_null_device(bundle, tmp_path):
    out = tmp_path / "r.json"
    done = run_script(bundle, out, "--device", "null:h200")
    assert done.returncode == 0, done.stdout + done.stderr
    results = report.read_results(out)
    assert results["complete"] and not results["measured"]
    assert [o["id"] for o in results["operators"]] == ["E19", "P4", "R3", "TC_M4", "EW0"]
    for o in results["operators"]:
        assert [c["status"] for c in o["candidates"]] == ["measured"] * 2 or "slower" in str(o["candidates"])
        assert all(p["status"] == "skipped" and "null device" in p["reason"] for p in o["peers"])
        assert {p["name"] for p in o["peers"]} >= {"torch"}
    text = report.render(results)
    assert "No measurement: a null device" in text and "No peer was timed" in text
    seconds = [o["best_s"] for o in results["operators"]]
    assert run_script(bundle, out, "--device", "null:h200").returncode == 0  # all of it is known
    assert [o["best_s"] for o in report.read_results(out)["operators"]] == seconds


def test_a_spent_budget_is_continued(bundle, tmp_path):
    out = tmp_path / "r.json"
    first = run_script(bundle, out, "--device", "null:h200?delay=0.6", "--budget-s", "2")
    assert "not complete" in first.stdout, first.stdout + first.stderr
    assert not report.read_results(out)["complete"]
    assert "not complete" not in run_script(bundle, out, "--device", "null:h200").stdout
    assert report.read_results(out)["complete"]


def test_failing_candidates_are_records(bundle, tmp_path):
    out = tmp_path / "r.json"
    done = run_script(bundle, out, "--device", "null:h200?wrong=0&crash=1", "--filter", "E19")
    assert done.returncode == 1 and "no candidate survived for: E19" in done.stdout
    (operator,) = report.read_results(out)["operators"]
    assert [c["status"] for c in operator["candidates"]] == ["wrong", "crashed"] and operator["best"] is None
    assert "E19 rank 2: crashed" in report.render(report.read_results(out))


def test_a_plan_of_another_bundle_is_refused(bundle, tmp_path, capsys):
    copy = tmp_path / "b"
    copy.mkdir()
    for path in bundle.rglob("*"):
        target = copy / path.relative_to(bundle)
        target.mkdir() if path.is_dir() else target.write_bytes(path.read_bytes())
    data = json.loads((copy / plan.PLAN).read_text())
    (copy / plan.PLAN).write_text(json.dumps({**data, "bundle": "0"}))
    assert main([str(copy), "--json", str(tmp_path / "r.json"), "--device", "null:h200"]) == 1
    assert "belongs to another bundle" in capsys.readouterr().err


def test_a_profiler_gets_the_kernel_it_asks_for(bundle, tmp_path):
    by_id = {e.id: dict(Bundle(bundle).load(e)) for e in Bundle(bundle).operators}
    assert once.chosen(bundle, "R3", None).program == next(iter(by_id["R3"].values())).program
    run_script(bundle, tmp_path / "r.json", "--device", "null:h200")
    results = report.read_results(tmp_path / "r.json")
    best = next(o["best"] for o in results["operators"] if o["id"] == "R3")
    assert once.chosen(bundle, "R3", tmp_path / "r.json").program == by_id["R3"][best].program
    with pytest.raises(ArtifactError, match="expected operator 'R9'"):
        once.chosen(bundle, "R9", None)
