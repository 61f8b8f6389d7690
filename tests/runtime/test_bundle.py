"""Bundles end to end on the null device: created, run bare, killed and resumed, imported, refused."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import roller
from roller.backends.cuda import toolchain
from roller.cli.bundle import _drop_binaries_to_limit
from roller.cli.main import main as cli
from roller.errors import ArtifactError
from roller.runtime import bundle as bundle_main
from roller.runtime.bundle_format import Bundle, pack_candidates, unpack_candidates
from roller.runtime.bundle_import import import_results
from roller.runtime.cache import KernelCache
from roller_runtime.storage.verified_container import MANIFEST, checksum
from tests.emulator.faults import index_off_by_one, planted

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    {"id": "M0", "op": "matmul", "M": 96, "N": 64, "K": 32, "flops": 393216},
    {"id": "E0", "op": "elementwise", "fn": "relu", "shape": [512, 33]},
    {"id": "R/0", "op": "reduce", "fn": "sum", "shape": [64, 100], "axes": [1]},
]
NULL = "null:h200"


def rehash(folder: Path, change) -> None:
    """Change a manifest as somebody would who knows its checksum."""
    path = folder / MANIFEST
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps({**data, "checksum": checksum(data)}))


def run(folder, out, *words):
    return bundle_main.main(["run", str(folder), "--json", str(out), "--device", NULL, *words])


def outcomes(results):
    return {o["id"]: [(r["candidate_id"], r["status"], r["measured_s"]) for r in o["records"]]
            for o in results["operators"]}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A bundle of three operators, with binaries where NVRTC is installed."""
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "ops.yaml").write_text(yaml.safe_dump({"operators": ROWS}))
    words = ["bundle", "create", "--ops", str(folder / "ops.yaml"), "--device", "h200", "--top-k", "4"]
    with pytest.raises(SystemExit) as done:
        cli([*words, "--out", str(folder / "b"), *([] if toolchain.available() is None else ["--sources"])])
    assert done.value.code == 0
    return folder / "b"


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made, tmp_path / "b")
    return tmp_path / "b"


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """The results of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "r.json"
    assert run(made, out) == 0
    assert not out.with_name("r.json.journal").exists()
    return out


def test_manifest_says_what_is_inside(made):
    bundle = Bundle(made)
    assert [e.id for e in bundle.operators] == ["M0", "E0", "R/0"]
    assert (bundle.device, bundle.arch, bundle.operators[0].flops) == ("h200", "sm_90", 393216)
    for entry in bundle.operators:
        candidates = bundle.load(entry)
        assert tuple(name for name, _ in candidates) == entry.candidates
        assert list(entry.predicted_s) == sorted(entry.predicted_s)
        for name, artifact in candidates:
            assert "__global__" in artifact.source, name
            assert (artifact.binary is not None) == (toolchain.available() is None)
    assert bundle_main.main(["verify", str(made)]) == 0


def test_manifest_says_what_is_proved_of_each_candidate(made):
    pytest.importorskip("tvm")
    if shutil.which("g++") is None:
        pytest.skip("the emulator builds kernels with g++")
    for entry in Bundle(made).operators:
        assert len(entry.proved) == len(entry.candidates)
        assert entry.proved[0] == "emulated"
    artifact = Bundle(made).load(Bundle(made).operators[0])[0][1]
    assert artifact.build["proved"] == "emulated" and "prove_s" not in artifact.build


def test_wrong_kernels_are_left_out_and_those_without_time_listed(tmp_path, monkeypatch, capsys):
    if shutil.which("g++") is None:
        pytest.skip("the emulator builds kernels with g++")
    from roller.cli import bundle as command

    spec = roller.load_spec("h200")
    expr = roller.ops.from_spec(ROWS[0])
    first = roller.construct(expr, spec, 3)[0].program.digest
    lower = command.lower

    def broken(program, expression, spec):
        made = lower(program, expression, spec)
        return (planted(made, index_off_by_one) or made) if program.digest == first else made

    monkeypatch.setattr(command, "lower", broken)
    done = command.create_bundle([ROWS[0]], spec, tmp_path / "b", top_k=3, binaries=False, prove_s=60.0)
    (row,) = done.manifest["operators"]
    ((_, reason),) = row["failed"]
    assert reason.startswith("wrong: emulated, forward order: ")
    assert row["proved"] == ["emulated", "emulated"] and len(row["candidates"]) == 2
    monkeypatch.setattr(command, "lower", lower)
    done = command.create_bundle([ROWS[0]], spec, tmp_path / "c", top_k=3, binaries=False, prove_s=0.001)
    assert set(done.manifest["operators"][0]["proved"]) == {"not proved (the seconds for proofs were used up)"}
    command._print_created_bundle(done, tmp_path / "c", False)
    assert "not proved (the seconds for proofs were used up): 3 candidates: M0 #1, M0 #2, M0 #3" in " ".join(
        capsys.readouterr().out.split()
    )


def test_candidates_survive_packing_and_share_what_they_share(made):
    bundle = Bundle(made)
    candidates = bundle.load(bundle.operators[0])
    again = unpack_candidates(pack_candidates(candidates), "x")
    assert again == candidates
    doubled = [*candidates, *((f"{n}'", a) for n, a in candidates)]
    assert len(pack_candidates(doubled)) < 1.2 * len(pack_candidates(candidates))
    assert all(a.binary is None for _, a in unpack_candidates(pack_candidates(candidates, binaries=0), "x"))
    assert [a.source for _, a in unpack_candidates(pack_candidates(candidates, binaries=0), "x")] == [
        a.source for _, a in candidates
    ]


@pytest.mark.skipif(toolchain.available() is not None, reason="no NVRTC: bundles carry sources only")
def test_a_limit_drops_the_binaries_of_the_worst_ranks_and_keeps_sources(made):
    bundle = Bundle(made)
    operators = [(e, (made / e.file).read_bytes()) for e in bundle.operators]
    size = sum(len(d) for _, d in operators)
    same, none = _drop_binaries_to_limit(operators, size)
    assert (same, none) == (operators, 0)
    fewer, left_out = _drop_binaries_to_limit(operators, int(size * 0.8))
    assert sum(len(d) for _, d in fewer) <= size * 0.8
    assert left_out > 0
    for entry, data in fewer:
        artifacts = [a for _, a in unpack_candidates(data, entry.id)]
        assert [a.binary is not None for a in artifacts] == [n < entry.binaries for n in range(len(artifacts))]
        assert all(a.source for a in artifacts)
    with pytest.raises(ArtifactError, match="the sources alone take"):
        _drop_binaries_to_limit(operators, 100)


def test_every_candidate_is_checked_and_timed(made, whole):
    results = json.loads(whole.read_text())
    assert results["complete"]
    assert results["kind"] == "null"
    for operator, entry in zip(results["operators"], Bundle(made).operators, strict=True):
        assert [r["candidate_id"] for r in operator["records"]] == list(entry.candidates)
        assert {r["status"] for r in operator["records"]} <= {"measured", "slower"}
        best = min((r for r in operator["records"] if r["status"] == "measured"), key=lambda r: r["measured_s"])
        assert (operator["best"], operator["best_s"]) == (best["candidate_id"], best["measured_s"])
        assert operator["winner"]["measured_s"] == best["measured_s"]


def test_faults_in_a_bundle_are_records(made, tmp_path):
    device = f"{NULL}?hang=1&wrong=2&crash=3"
    words = ["run", str(made), "--json", str(tmp_path / "r.json"), "--filter", "M0", "--timeout-s", "1"]
    assert bundle_main.main([*words, "--device", device]) == 0
    records = json.loads((tmp_path / "r.json").read_text())["operators"][0]["records"]
    assert [r["status"] for r in records] == ["measured", "timeout", "wrong", "crashed"]


def test_no_survivor_is_exit_status_1(made, tmp_path, capsys):
    words = ["run", str(made), "--json", str(tmp_path / "r.json"), "--filter", "E0"]
    assert bundle_main.main([*words, "--device", f"{NULL}?wrong=0,1,2,3"]) == 1
    assert "no candidate survived for: E0" in capsys.readouterr().out


def test_killed_at_random_moments_and_resumed_nothing_is_lost(made, whole, tmp_path):
    rng = random.Random(7)
    out, journal = tmp_path / "r.json", tmp_path / "r.json.journal"
    command = [sys.executable, "-m", "roller.runtime.bundle", "run", str(made), "--json", str(out)]
    # A check that takes a while, so that a kill comes in the middle of the run on any machine.
    command += ["--device", f"{NULL}?delay=0.04"]
    kept: list[int] = []

    def lines():
        return max(0, len(journal.read_bytes().splitlines()) - 1) if journal.exists() else 0

    for _ in range(20):
        target = (kept[-1] if kept else 0) + rng.randint(0, 3)
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and lines() < target:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.03)
        process.kill()
        _, err = process.communicate()
        if out.exists():
            break
        assert process.returncode < 0, err
        kept.append(lines())
    assert len(kept) >= 3, "too few runs were killed"
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert kept == sorted(kept), "a record was lost between two runs"
    assert outcomes(json.loads(out.read_text())) == outcomes(json.loads(whole.read_text()))
    assert not journal.exists()


def test_a_line_cut_off_by_a_kill_is_run_again(made, whole, tmp_path):
    out, journal = tmp_path / "r.json", tmp_path / "r.json.journal"
    assert run(made, out, "--filter", "M0,E0") == 0
    results = json.loads(out.read_text())
    header = {k: results[k] for k in ("bundle", "device", "kind", "seed")}
    records = [{"operator": o["id"], **{k: v for k, v in r.items() if k not in ("rank", "predicted_s")}}
               for o in results["operators"] for r in o["records"]]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in (header, *records[:5]))
    out.unlink()
    journal.write_text(text + json.dumps(records[5])[:40])
    assert run(made, out) == 0
    assert outcomes(json.loads(out.read_text())) == outcomes(json.loads(whole.read_text()))
    journal.write_text(text.replace(results["bundle"], "0" * 64))
    assert run(made, out) == 1


def test_a_budget_stops_early_and_another_run_completes(made, whole, tmp_path, capsys):
    out = tmp_path / "r.json"
    assert run(made, out, "--budget-s", "0") == 0
    assert "run the same command again" in capsys.readouterr().out
    assert not json.loads(out.read_text())["complete"]
    assert run(made, out) == 0
    assert outcomes(json.loads(out.read_text())) == outcomes(json.loads(whole.read_text()))


def test_a_wider_filter_adds_to_earlier_results(made, whole, tmp_path):
    out = tmp_path / "r.json"
    assert run(made, out, "--filter", "E0") == 0
    first = json.loads(out.read_text())
    assert list(outcomes(first)) == ["E0"]
    assert run(made, out) == 0
    assert outcomes(json.loads(out.read_text())) == outcomes(json.loads(whole.read_text()))
    assert run(made, out, "--filter", "Q*") == 1


def test_several_devices_share_the_operators(made, whole, tmp_path):
    out = tmp_path / "r.json"
    words = ["run", str(made), "--json", str(out), "--device", f"{NULL},{NULL}"]
    assert bundle_main.main(words) == 0
    assert outcomes(json.loads(out.read_text())) == outcomes(json.loads(whole.read_text()))


BARE = """
import sys
for name in {missing}:
    sys.modules[name] = None  # as if it were not installed
"""
ELSEWHERE = ("tvm", "tvm_ffi", "yaml", "typer", "rich", "platformdirs", "cupy")


def bare(tmp_path, made, missing, *words):
    """Run in a copy of the package, without installation and without the packages named."""
    place = tmp_path / "machine"
    if not place.exists():
        shutil.copytree(ROOT / "roller", place / "roller", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "sitecustomize.py").write_text(BARE.format(missing=missing))
    command = [
        sys.executable,
        "-m",
        "roller.runtime.bundle",
        "run",
        str(made),
        "--json",
        str(tmp_path / "r.json"),
        *words,
    ]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["PYTHONPATH"] = str(place)
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)


def test_python_and_numpy_are_enough(made, whole, tmp_path):
    done = bare(tmp_path, made, ELSEWHERE, "--device", NULL)
    assert done.returncode == 0, done.stderr
    assert outcomes(json.loads((tmp_path / "r.json").read_text())) == outcomes(json.loads(whole.read_text()))


@pytest.mark.parametrize(
    ("missing", "text"),
    [(ELSEWHERE, r"expected CuPy((?!\. ).)*'pip install cupy-cuda12x'"),  # in the first sentence, which packs show
     (("numpy",), "package 'numpy'.*pip install numpy")],
)  # fmt: skip
def test_each_missing_thing_is_one_clear_line(made, tmp_path, missing, text):
    done = bare(tmp_path, made, missing)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("bundle: error: ")
    assert re.search(text, line)
    assert not (tmp_path / "r.json").exists()


def test_wrong_checksum_is_refused(copied, tmp_path, capsys):
    entry = Bundle(copied).operators[1]
    path = copied / entry.file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert run(copied, tmp_path / "r.json") == 1
    assert "checksum does not match the manifest" in capsys.readouterr().err
    manifest = copied / MANIFEST
    manifest.write_text(
        manifest.read_text().replace('"predicted_s"', '"predicted_s" ', 1).replace('"h200"', '"a100"', 1)
    )
    assert run(copied, tmp_path / "r.json") == 1
    assert "manifest.json: checksum does not match" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["../outside.xz", "/etc/hostname", "ops/../../outside.xz", "ops/link.xz", "..\\x"])
def test_a_path_outside_the_folder_is_refused(copied, tmp_path, capsys, file):
    entry = Bundle(copied).operators[0]
    shutil.copy(copied / entry.file, tmp_path / "outside.xz")
    (copied / "ops" / "link.xz").symlink_to(tmp_path / "outside.xz")
    rehash(copied, lambda data: data["operators"][0].update(file=file))
    assert run(copied, tmp_path / "r.json") == 1
    assert "lies outside the folder. Do not trust it" in capsys.readouterr().err


def test_other_refusals_name_the_cause(copied, made, tmp_path, capsys):
    def refused(*words):
        assert bundle_main.main(["run", *map(str, words)]) == 1
        return capsys.readouterr().err

    out = tmp_path / "r.json"
    assert "found none. Make one" in refused(tmp_path / "nothing", "--json", out)
    assert "built for h200 (sm_90), device 'null:v100'" in refused(copied, "--json", out, "--device", "null:v100")
    assert "cannot write" in refused(copied, "--json", tmp_path / "no" / "r.json", "--device", NULL)
    rehash(copied, lambda data: data.update(version=99))
    assert "expected version 1 or older, got 99" in refused(copied, "--json", out)
    rehash(copied, lambda data: data.update(version=1, operators=[{"id": "x"}]))
    assert "a field is missing or malformed" in refused(copied, "--json", out)
    (Path(copied) / MANIFEST).write_text("{")
    assert "not valid JSON" in refused(copied, "--json", out)
    with pytest.raises(ArtifactError, match="cut short"):
        unpack_candidates((made / Bundle(made).operators[0].file).read_bytes()[:-20], "x")


def measured_elsewhere(whole, tmp_path):
    """Return results as a GPU would have written them: null results are refused."""
    data = json.loads(whole.read_text())
    data.update(kind="cuda", device="NVIDIA H200")
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({**data, "checksum": checksum(data)}))
    return path, data


def test_winners_and_measurements_come_home(whole, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "cache"))
    path, data = measured_elsewhere(whole, tmp_path)
    timed = sum(r["measured_s"] is not None for o in data["operators"] for r in o["records"])
    assert import_results(path) == {"kernels": 3, "measurements": timed, "current": True}
    kernel = roller.compile(roller.ops.from_spec(ROWS[0]), device="h200", top_k=4)
    assert kernel.measured_s == data["operators"][0]["best_s"]
    assert [c.id for c in kernel.candidates] == [r["candidate_id"] for r in data["operators"][0]["records"]]
    kept = KernelCache().measurements()
    assert len(kept) == timed
    assert dict(kept[0].detail)["gpu"] == "NVIDIA H200"


def test_results_that_are_no_measurements_are_refused(whole, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(ArtifactError, match="null device; its times are not measured"):
        import_results(whole)
    path, data = measured_elsewhere(whole, tmp_path)
    path.write_text(json.dumps({**data, "seconds": 1.0}))
    with pytest.raises(ArtifactError, match="checksum does not match"):
        import_results(path)
    assert KernelCache().measurements() == ()


def test_create_refuses_before_it_works(made, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(roller, "construct", lambda *_, **__: pytest.fail("it constructed before it refused"))
    ops = str(made.parent / "ops.yaml")
    for words, text in (
        (["--ops", str(tmp_path / "none.yaml"), "--out", str(tmp_path / "x")], "cannot read the operators"),
        (["--ops", ops, "--out", str(made)], "exists and is not empty"),
        (["--ops", ops, "--out", str(tmp_path / "x"), "--filter", "Z"], "matches none of 3"),
        (["--ops", ops, "--out", str(tmp_path / "x"), "-d", "cpu"], "expected the spec of a GPU"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as done:
            cli(["bundle", "create", *words])
        assert done.value.code == 1
        assert text in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
