"""benchmarks/gpu without a GPU: rows, timing, the process around peers, and the whole way on a null device."""

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.gpu import child, comparison, journal, ncu, once, paired, plan, report, rows, variants
from benchmarks.gpu.bring_home import bring_home, results_in
from benchmarks.gpu.cards import CardBundle
from benchmarks.gpu.pack import Options, make_pack
from roller import ops
from roller.errors import ArtifactError, ExprError
from roller.hardware import load_spec
from tests.benchmarks.gpu_packs import write_kernels


def test_every_row_builds_an_expression_of_the_published_work():
    planned = rows.rows()
    assert len({p.id for p in planned}) == len(planned) == 119 + 44 + 14
    sets = {s: [p.id for p in planned if s in p.sets] for p in planned for s in p.sets}
    assert len(sets["all 119"]) == 119 and len(sets["scale_relu"]) == 7
    assert sets["tensorcore"] == ["TC_M3", "TC_M4", "TC_M5", "TC_M6"]
    assert sets["small"] == ["M1", "M2"] and "C36" in sets["irregular"]
    for p in planned:
        expr = ops.from_spec(p.row)
        assert all(t.dtype == p.row["dtype"] for t in expr.inputs)
        if p.row["op"] == "matmul":
            assert p.row["flops"] == 2 * p.row.get("batch", 1) * p.row["M"] * p.row["N"] * p.row["K"]


def test_unknown_ids_are_refused():
    with pytest.raises(ExprError, match="none of 177"):
        rows.rows("Z*")


def test_batch_is_halved_until_time_and_memory_allow_and_the_note_says_so():
    v100 = load_spec("v100")
    (large,) = rows.rows("SC_8192")
    done = rows.fitted(large, v100)
    assert done.row["N"] < 8192 and done.row["flops"] * (8192 // done.row["N"]) == large.row["flops"]
    assert f"batch divided by {8192 // done.row['N']}: 9.9 GB of inputs and outputs in 16 GB" in done.notes
    (small,) = rows.rows("M2")
    assert rows.fitted(small, v100) == small


def test_an_odd_batch_that_does_not_fit_is_left_out_with_the_reason():
    row = {"id": "X", "op": "elementwise", "fn": "relu", "dtype": "float32", "shape": [3, 1 << 30], "flops": 3 << 30}
    done = rows.fitted(plan.Planned(row, ("x",)), load_spec("v100"))
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
    row = {"op": "conv2d", "dtype": "float32"}
    return comparison.tasks_of([plan.Planned({"id": i, **row}, ("x",)) for i in ids], dict.fromkeys(ids, "first"))


def results(tmp_path, **header):
    return journal.RunJournal(tmp_path / "results", {"pack": "p", "kind": "null", **header})


def compare(tmp_path, body, ids="ABC", seconds=3600, say=print, now=time.monotonic):
    kept = results(tmp_path)
    command = fake_worker(tmp_path, body) if isinstance(body, str) else body
    try:
        return comparison.run_tasks(tasks(*ids), {}, kept, now() + seconds, say, command), kept.data
    finally:
        kept.close()


def test_a_peer_that_dies_becomes_a_record_and_the_others_finish(tmp_path):
    reason, data = compare(tmp_path, "task['id'] == 'B' and os.kill(os.getpid(), 11)")
    assert reason == "" and data.versions == {"torch": "9"}
    assert [data.peers[f"{i}/functional"][0]["status"] for i in "ABC"] == ["measured", "crashed", "measured"]
    assert "signal 11" in data.peers["B/functional"][0]["reason"]
    # a later run knows all of it, and asks nobody
    reason, again = compare(tmp_path, ["/no"])
    assert reason == "" and again.peers == data.peers


def test_a_peer_that_leaves_the_device_unusable_is_kept_and_its_process_replaced(tmp_path):
    last = "task['id'] == 'A' and (say(event='done', key=task['key'], peers=[]), os._exit(1))"
    reason, data = compare(tmp_path, last)
    assert reason == "" and data.peers["A/functional"] == [] and set(data.peers) == {f"{i}/functional" for i in "ABC"}


class HangingClock:
    """Time that passes only while a worker hangs, a second a look: a busy machine is no slower by it.

    A worker that hangs says so by a file; ``over`` takes it away.
    """

    def __init__(self, path, monkeypatch):
        self.now, self._hangs = 0.0, path / "hangs"
        for module in (comparison, child):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=self))

    def __call__(self):
        self.now += self._hangs.exists()
        return self.now

    def hanging(self, task):
        return f"task['id'] == '{task}' and (open({str(self._hangs)!r}, 'w').close(), time.sleep(3600))"

    def over(self, line):
        self._hangs.unlink(missing_ok=True)


def test_a_peer_that_hangs_is_ended_and_the_others_finish(tmp_path, monkeypatch):
    monkeypatch.setitem(comparison.LIMIT_S, "functional", 0.5)
    clock = HangingClock(tmp_path, monkeypatch)
    _, data = compare(tmp_path, clock.hanging("A"), "AB", say=clock.over, now=clock)
    assert "no answer within 0.5 s" in data.peers["A/functional"][0]["reason"]
    assert data.peers["B/functional"][0]["status"] == "measured"


def test_a_spent_budget_leaves_the_rest_for_the_next_run(tmp_path, monkeypatch):
    clock = HangingClock(tmp_path, monkeypatch)
    _, data = compare(tmp_path, clock.hanging("B"), "AB", seconds=4, now=clock)
    assert 4 < clock.now < 8 and set(data.peers) == {"A/functional"}


def test_a_worker_that_cannot_start_ends_the_peers_with_its_reason(tmp_path):
    reason, data = compare(tmp_path, [sys.executable, "-c", "raise SystemExit('no such library')"])
    assert "exit code 1: no such library" in reason and data.peers == {}


def test_a_journal_that_a_kill_cut_off_goes_on_and_another_runs_is_refused(tmp_path):
    kept = results(tmp_path)
    kept.write("peers", key="A/functional", peers=[])
    kept.close()
    with (tmp_path / "results" / journal.FILE).open("a") as file:
        file.write('{"key": "B/fun')
    kept = results(tmp_path)
    assert set(kept.data.peers) == {"A/functional"}
    kept.write("peers", key="B/functional", peers=[])
    kept.close()
    assert set(journal.read(tmp_path / "results")[1].peers) == {"A/functional", "B/functional"}
    with pytest.raises(ArtifactError, match=r"belongs to another run \(seed differ\)"):
        results(tmp_path, seed=1)


def test_figures_of_the_profiler_are_read_and_its_refusals_told_in_a_sentence():
    text = ncu.pretended({"seconds": 3e-3}, ["a", "b"])
    assert [k["kernel"] for k in ncu.parsed(text)] == ["a", "b"]
    assert ncu.parsed(text)[0]["time_s"] == pytest.approx(1.5e-3) and ncu.parsed(text)[0]["l2_bytes"] == 1024
    refused = "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission ..."
    assert ncu.parsed(refused) == [] and ncu.refusal(refused)[1] and "run as root" in ncu.refusal(refused)[0]
    assert ncu.refusal("==ERROR== no kernels were profiled\n") == ("no kernels were profiled", False)
    bundle = SimpleNamespace(folder=plan.Path("b/operators"), device="h200")
    command = ncu.command("ncu", bundle, "M3", "x", ["k_kernel", "k_kernel_1"])
    assert command[command.index("--kernel-name") + 1] == "regex:^(k_kernel|k_kernel_1)$"
    assert command[command.index("--launch-count") + 1] == "2"


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
    results = {"measured": True, "peers": "measured", "operators": operators}
    text = report.render(results, load_spec("h200"))
    assert "| matmul | 2 | 1.00 | 50 % | 50 % | 50 % | 50 % |" in text
    assert "| matmul | 2 | 3/3 | 0.707 | 50 % | 25 % |" in text
    assert "| A | e | 1 | 1 | 2 | 2.00 | 2 | 2.00 |" in text
    assert "- B: triton: failed: no" in text
    assert "| fp16 matmul, tensor cores against torch | >= 0.6 | 1.00 over 2 of 2 | holds |" in text
    assert "| depthwise against torch | >= 1.5 | none of 0 | not measured |" in text
    ceiling = 2 * load_spec("h200").ops_per_s("matrix", "float16")
    assert f"| A | 2 | {100 * 2e12 / ceiling:.0f} % | assumed |" in text


def test_every_form_of_the_matrix_units_is_forced():
    spec = load_spec("h200")
    names = {f.name.partition(".")[0] for f in variants.fragments(spec)}
    assert names == {"wgmma", "mma", "wmma"}
    wgmma = [f for f in variants.fragments(spec) if f.reads_scratchpad and f.operand == "float16"]
    made = {w.id: w for w in variants._warp_groups(spec, wgmma)}
    assert all(not w.refused for w in made.values()), [w.refused for w in made.values()]
    for letters in ("nn", "nt", "tn", "tt"):
        programs = [v.program for v in made[f"wgmma-float16-{letters}"].variants]
        depths = {dict(p.tiles)["shared"][2] for p in programs}
        assert depths == {16, 32, 64, 128} and {p.stages for p in programs} >= {1, 3}
    full = [v.program for v in made["wgmma-float16-nn"].variants]
    assert {p.stages for p in full} == {1, 2, 3, 4, 5}
    assert {p.fragment.n for p in full} >= {16, 32, 64, 96, 128, 160, 192, 224, 256}
    assert {p.split_k for p in full} == {1, 3} and {p.raster for p in full} == {1, 2}
    resident = made["wgmma-float16-resident"].variants
    assert {v.estimate.terms["blocks_per_unit"] for v in resident} >= {1.0, 2.0}


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """A small pack for two cards, without binaries."""
    pytest.importorskip("tvm", reason="building a pack needs TVM")
    pytest.importorskip("onnx")
    out = tmp_path_factory.mktemp("gpu") / "b"
    lstm = (("layers", 1), ("steps", 2), ("width", 16))
    options = Options(
        minutes=60, top_k=2, pattern="E19,R3,TC_M4,streaming,wgmma-float16-bias,lstm", sources=True,
        networks=(("lstm", lstm),),
    )  # fmt: skip
    said = []
    make_pack(("h200", "h100"), out, options, said.append)
    operators = plan.read_pack(out).kernels("operators")
    best = operators.load(next(e for e in operators.operators if e.id == "TC_M4"))[0][1]
    assert any(x.startswith("TC_M4: float16 without") for x in said) == (best.program.fragment is None)
    assert "MiB for h200, h100; there: python3 b/run.py --minutes 8" in said[-1]
    return out


def run_pack(pack, results, *arguments, device="null", **options):
    # From elsewhere, without PYTHONPATH and without what is installed beside NumPy: the folder is all there is.
    command = [sys.executable, str(pack / "run.py"), "--results", str(results), "--device", device, *arguments]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(command, cwd=pack.parent, env=env, capture_output=True, text=True, check=False, **options)


@pytest.mark.slow
def test_the_whole_way_on_a_null_device(pack, tmp_path):
    done = run_pack(pack, tmp_path / "r")
    assert done.returncode == 0, done.stdout + done.stderr
    home, (mine,) = tmp_path / "home", results_in(tmp_path / "r")
    assert mine.name == "h200" and sorted(p.name for p in mine.iterdir()) == ["ncu.csv", "results.jsonl", "summary.txt"]
    assert not list(pack.rglob("__pycache__"))  # the pack stays what it was
    header, data = journal.read(mine)
    assert header["kind"] == "null" and header["card"] == "h200"
    assert set(data.records) == {"variants", "operators", "races"}
    found = {n: {r.status for rows in p.values() for r in rows.values()} for n, p in data.records.items()}
    assert found["variants"] == {"checked"} and found["operators"] <= {"measured", "slower"}
    assert set(data.models["lstm"]) >= {"check", "steps", "graph", "profile"}
    assert {k.rpartition("/")[2] for k in data.peers} == {"functional", "triton", "compile"}
    assert len(data.profiles) == 3 and all(not p["reason"] for p in data.profiles.values())
    told, text = bring_home(pack, mine, home), (home / "report.md").read_text()
    assert told.splitlines()[0] in text and "No measurement: a null device" in text
    for title in ("What to do next", "Doctor", "Forms of kernels", "Probes", "Against torch", "Models", "Profiles"):
        assert f"## {title}" in text
    assert "| streaming | 3/3 |" in text and "| E19 |" in text
    assert sorted(p.name for p in home.iterdir()) == ["probes.json", "report.md"]  # and no YAML
    again = run_pack(pack, tmp_path / "r")
    assert again.returncode == 0 and "-- " not in again.stdout  # all of it is known
    other = run_pack(pack, tmp_path / "r", "--card", "h100", "--filter", "E19")
    assert other.returncode == 0 and [p.name for p in results_in(tmp_path / "r")] == ["h100", "h200"]
    bring_home(pack, tmp_path / "r" / "h100", tmp_path / "other")
    assert (tmp_path / "other" / "report.md").read_text().startswith("# h100: a run on null device")


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_everything(pack, tmp_path):
    random.seed(5)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, str(pack / "run.py"), "--results", str(tmp_path / "r"), "--device", "null"]
    for _ in range(4):
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(random.randrange(1, 8)):  # killed at a moment that depends on what is done, not on how fast
            process.stdout.readline()
        process.kill()
        process.communicate()
    done = run_pack(pack, tmp_path / "r")
    assert done.returncode == 0, done.stdout + done.stderr
    _, data = journal.read(tmp_path / "r" / "h200")
    for part in ("variants", "operators"):
        for e in plan.read_pack(pack).kernels(part).operators:
            assert set(data.records[part][e.id]) == set(e.candidates)
    lines = (tmp_path / "r" / "h200" / journal.FILE).read_text().splitlines()
    rows_ = [json.loads(x) for x in lines[1:]]
    kernels = [(r["phase"], r["operator"], r["record"]["candidate_id"]) for r in rows_ if "record" in r]
    assert len(kernels) == len(set(kernels))  # nothing is done twice
    assert len(data.calls) == 5


@pytest.mark.slow
def test_a_hung_kernel_costs_its_time_limit_and_the_others_go_on(pack, tmp_path):
    done = run_pack(pack, tmp_path / "r", "--timeout-s", "4", "--filter", "streaming,E19", device="null?hang=0&crash=1")
    assert done.returncode == 0, done.stdout + done.stderr
    _, data = journal.read(tmp_path / "r" / "h200")
    assert [r.status for r in data.records["variants"]["streaming"].values()] == ["timeout", "crashed", "checked"]
    told = bring_home(pack, tmp_path / "r" / "h200", tmp_path / "home")
    assert told.startswith("1. **E19**: 2 of 2 kernels crashed or timeout")


@pytest.mark.slow
def test_a_machine_without_a_gpu_says_in_one_sentence_what_is_missing(pack, tmp_path):
    done = run_pack(pack, tmp_path / "r", device="cuda:0")
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("run.py: error: GPU: expected ") and line.count(". ") == 0
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_a_part_or_results_of_another_pack_are_refused(pack, tmp_path):
    copy = tmp_path / "b"
    copy.mkdir()
    for name in ("variants", "probes", "operators", "models"):
        (copy / name).symlink_to(pack / name)
    data = json.loads((pack / plan.FILE).read_text())
    (copy / plan.FILE).write_text(json.dumps({**data, "notes": ["other"]}))
    with pytest.raises(ArtifactError, match="its checksum does not match"):
        plan.read_pack(copy)
    other = plan.write_pack(replace(plan.read_pack(pack), folder=copy, operators=(), notes=("other",)))
    assert run_pack(pack, tmp_path / "r", "--filter", "nothing").returncode == 0
    with pytest.raises(ArtifactError, match="those of another pack"):
        bring_home(other.folder, tmp_path / "r" / "h200", tmp_path / "home")


def test_a_profiler_gets_the_kernel_it_asks_for(tmp_path, monkeypatch):
    folder = tmp_path / "operators"
    write_kernels(folder, {"R3": 3, "E19": 1})
    monkeypatch.setattr(
        CardBundle, "load", lambda bundle, e: [(c, f"{bundle.device} {e.id} {c}") for c in e.candidates]
    )
    assert once.chosen(folder, "R3", None) == "h100 R3 a" and once.chosen(folder, "R3", "c", "h200") == "h200 R3 c"
    with pytest.raises(ArtifactError, match="expected operator 'R9'"):
        once.chosen(folder, "R9", None)
    with pytest.raises(ArtifactError, match=r"expected one of \['a'\], got 'b'"):
        once.chosen(folder, "E19", "b")


@pytest.mark.slow
def test_cards_of_two_architectures_and_packs_that_are_too_large_are_refused(tmp_path):
    with pytest.raises(ArtifactError, match=r"cards of one architecture, got h200 \(sm_90\), a100 \(sm_80\)"):
        make_pack(("h200", "a100"), tmp_path / "b", Options(), print)
    small = Options(pattern="E19", parts=("operators",), sources=True, most_mib=0.5)
    with pytest.raises(ArtifactError, match=r"at most 0\.5 MiB, got [0-9.]+\. Lower --minutes"):
        make_pack(("h200", "h100"), tmp_path / "b", small, print)
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_what_a_device_measured_becomes_a_specification_and_can_be_imported(pack, tmp_path):
    from roller.runtime.check_and_time_bundle_kernels import RESULTS

    assert run_pack(pack, tmp_path / "r", "--filter", "E19,R3").returncode == 0
    path = tmp_path / "r" / "h200" / journal.FILE
    first, *lines = path.read_text().splitlines(keepends=True)
    path.write_text(first.replace('"kind": "null"', '"kind": "cuda"') + "".join(lines))  # as if a GPU had run it
    told = bring_home(pack, path.parent, tmp_path / "home", "mine")
    assert "kernels of variants were not reached: run the pack again" in told
    spec = load_spec(str(tmp_path / "home" / "mine.yaml"))
    assert spec.sources["compute.ops_per_cycle_per_unit.group_matrix.float16"] == "measured"
    found = RESULTS.read(tmp_path / "home" / "kernels.json")
    assert {o["id"] for o in found["operators"]} == {"E19", "R3"} and all(o["winner"] for o in found["operators"])
    assert "Share of the instruction's ceiling" in (tmp_path / "home" / "report.md").read_text()
