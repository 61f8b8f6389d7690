"""``roller probe`` with a device that is made up: what is written, where, and what it does to device 'cpu'."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

import roller
from roller.cli import main as cli
from roller.cli import probe as verb
from roller.cli.shared_options_and_tables import UsageError
from roller.hardware import load_spec, spec_folder
from roller.hardware.detect_cpu_spec import detect_cpu_without_probe, is_this_machine
from roller.hardware.generic_cpu import generic_profile
from roller.hardware.probed_profile_location import profile_path
from roller.probing import MeasuredValue
from roller.probing.run_probes import ProbeReport
from tests.offenders import every

FOUND = {
    "clock_hz": MeasuredValue(3.2e9, 0.01, 60),
    "execution.fork_s": MeasuredValue(1.4e-6, 0.05, 60),
    "memory_layers.l3.bandwidth_bytes_per_s": MeasuredValue(2.4e11, 0.04, 60),
    "memory_layers.l3.bandwidth_per_teu_bytes_per_s": MeasuredValue(1.2e11, 0.04, 60),
    "memory_layers.l1.tlb_entries": MeasuredValue(96, 0.0, 60),
}
REFUSED = {"execution.launch_s": "spread 40 % of 60 windows, at most 15 % may be written. Repeat on a quieter machine."}


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLER_PROFILE_DIR", str(tmp_path / "profiles"))
    rounds = []

    def measure(base, count):
        rounds.append(count)
        return ProbeReport(
            FOUND, {"beside.roots": MeasuredValue(3.5, 0.0, 1)}, REFUSED, {"launch": "no pool"}, ("l2: a remark",), 12.0
        )

    monkeypatch.setattr(verb, "_measure", measure)

    def invoke(*words):
        return CliRunner().invoke(cli.app, ["probe", *words], catch_exceptions=True)

    invoke.rounds = rounds
    return invoke


def test_the_profile_of_this_machine_lies_on_top_of_detection(run):
    before = load_spec("cpu")
    assert "measured" not in {before.sources[p] for p in FOUND if p in before.sources}
    done = run("cpu")
    assert done.exit_code == 0, done.output
    assert "not written: execution.launch_s: spread 40 %" in done.output
    assert "l2: a remark" in done.output
    assert "probe launch failed: no pool" in done.output
    after = load_spec("cpu")
    assert {p: after.values()[p] for p in FOUND} == {p: m.value for p, m in FOUND.items()}
    assert {after.sources[p] for p in FOUND} == {"measured"}
    error = "accuracy.prediction_error"
    assert after.values()[error] < before.values()[error], "the error of the profile is that of probed machines"
    others = set(before.values()) - set(FOUND) - {error}
    assert {p: after.values()[p] for p in others} == {p: before.values()[p] for p in others}
    assert after.name == "cpu"
    assert after.description.endswith("probed")
    unprobed = detect_cpu_without_probe().values()
    assert {p: v for p, v in unprobed.items() if p != error} == {p: v for p, v in before.values().items() if p != error}


def test_out_writes_a_complete_specification_of_this_machine(run, tmp_path):
    path = tmp_path / "mine.yaml"
    assert run("cpu", "--out", str(path)).exit_code == 0
    assert load_spec("cpu").sources["clock_hz"] != "measured"
    spec = load_spec(path)
    assert (spec.name, spec.kind, spec.clock_hz) == ("mine", "cpu", 3.2e9)
    assert spec.sources["execution.launch_s"] == "assumed"
    assert "spread 1.0 %" in path.read_text()
    assert is_this_machine(spec)
    assert not is_this_machine(load_spec("cpu-avx512"))


def test_a_kernel_for_the_file_of_this_machine_runs_here(run, tmp_path):
    path = tmp_path / "mine.yaml"
    run("cpu", "--out", str(path))
    kernel = roller.compile(roller.ops.elementwise("relu", (4, 64)), device=str(path), top_k=1)
    assert kernel.artifact.measured_s is not None
    text = path.read_text().replace(load_spec(path).machine, "another machine; 64 cores")
    (tmp_path / "other.yaml").write_text(text)
    other = str(tmp_path / "other.yaml")  # the same numbers: a kernel measured here would be in the cache
    elsewhere = roller.compile(roller.ops.elementwise("relu", (4, 64)), device=other, top_k=1, cache=False)
    assert elsewhere.artifact.measured_s is None


def test_the_profile_of_another_machine_is_left_alone(run):
    run("cpu")
    path = profile_path(detect_cpu_without_probe().machine)
    text = path.read_text()
    path.write_text(text.replace(detect_cpu_without_probe().machine, "another machine"))
    assert load_spec("cpu").sources["clock_hz"] != "measured"


def test_a_damaged_profile_says_what_to_do(run):
    run("cpu")
    profile_path(detect_cpu_without_probe().machine).write_text("kind: [")
    with pytest.raises(roller.errors.SpecError, match=r"run it again, or delete the file\."):
        load_spec("cpu")


def test_it_works_without_the_shipped_profile(run, tmp_path, monkeypatch):
    monkeypatch.setattr("roller.hardware.detect_cpu_spec.spec_folder", lambda: tmp_path)
    detect_module = __import__("roller.hardware.detect_cpu_spec", fromlist=["_detect_cpu_spec"])
    detect_module._detect_cpu_spec.cache_clear()
    try:
        spec = detect_cpu_without_probe()
        assert spec.sources["execution.fork_s"] == "assumed"
        assert "nothing else known" not in spec.description  # detection names the model
        path = tmp_path / "mine.yaml"
        assert run("cpu", "--out", str(path)).exit_code == 0
        assert run("cpu").exit_code == 0
        assert load_spec("cpu").clock_hz == load_spec(path).clock_hz == 3.2e9
        assert len(roller.construct(roller.ops.matmul(256, 256, 256), device="cpu", top_k=3)) == 3
    finally:
        detect_module._detect_cpu_spec.cache_clear()


@pytest.mark.parametrize("name", ["cpu-avx512", "cpu-avx2", "cpu-neon"])
def test_a_generic_profile_is_near_the_shipped_one(name):
    generic, shipped = generic_profile(name), load_spec(name)
    assert generic.teu == shipped.teu
    assert generic.limits.vector_registers == shipped.limits.vector_registers
    values, known = generic.values(), shipped.values()
    per_core = {f"memory_layers.{x.name}.bandwidth_bytes_per_s" for x in shipped.memory_layers}
    for path in set(values) & set(known) - {"units"}:
        expected = known[path] / (shipped.units if path in per_core else 1)
        assert expected / 4 <= values[path] <= expected * 4, path


def test_json_quick_and_wrong_names(run, tmp_path):
    data = json.loads(run("cpu", "--json", "--quick").output)
    assert data["values"]["clock_hz"] == {"value": 3.2e9, "spread": 0.01, "samples": 60}
    assert data["refused"] == REFUSED
    assert run.rounds == [verb.QUICK_ROUNDS]
    assert "expected 'cpu', 'cuda:N' or 'rocm:N', got 'gpu'" in str(run("gpu").exception)
    assert "does not exist" in str(run("cpu", "--out", str(tmp_path / "no" / "x.yaml")).exception)
    named = tmp_path / "cpu.yaml"
    assert run("cpu", "--out", str(named)).exit_code == 0
    assert load_spec(named).name == "cpu-probed"


@every(
    ("words", "message"),
    [
        ("cpu --bundle B", r"--bundle: expected a GPU, got 'cpu'"),
        ("cpu --bundle B --device v100", r"--bundle: expected a GPU, got 'cpu'"),
        ("cpu --device v100", r"--device: expected --bundle DIR beside it, got 'v100' alone"),
        ("cuda:0 --device v100", r"--device: expected --bundle DIR beside it"),
        ("cpu --import x.json", r"--import: expected a GPU, got 'cpu'"),
        ("--bundle B --import x.json", r"--import: expected no --bundle beside it"),
        ("--bundle B --device v100 --quick --out x.yaml", r"--bundle: expected no --out and no --quick beside it"),
        ("--import x.json --quick", r"--import: expected no --quick beside it"),
        (
            "rocm:0 --bundle B --device v100",
            r"kernels in 'hip' for 'rocm:0', got 'v100' with 'cuda'\. Use one of.*mi50",
        ),
        (
            "cuda:0 --bundle B --device mi50",
            r"kernels in 'cuda' for 'cuda:0', got 'mi50' with 'hip'\. Use one of.*v100",
        ),
        ("cuda:0 --bundle B --device cpu-avx2", r"expected the specification of a GPU, got 'cpu-avx2' of a cpu"),
        ("xx --bundle B --device v100", r"expected 'cuda:N' or 'rocm:N' beside --device v100, got 'xx'"),
        ("xx", r"expected 'cpu', 'cuda:N' or 'rocm:N', got 'xx'\. Name one of these\."),
        ("xx --import x.json", r"expected 'cpu', 'cuda:N' or 'rocm:N', got 'xx'"),
        ("cudaa:0", r"got 'cudaa:0'; did you mean 'cuda'\?"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(run, tmp_path, monkeypatch, words, message):
    monkeypatch.setenv("ROLLER_PROFILE_DIR", str(tmp_path / "profiles"))
    monkeypatch.chdir(tmp_path)
    done = run(*words.split())
    assert isinstance(done.exception, (roller.errors.SpecError, UsageError)), (done.output, done.exception)
    assert re.search(message, str(done.exception)), done.exception
    assert not run.rounds and not list(tmp_path.iterdir())


def test_out_does_not_overwrite_what_is_not_its_own(run, tmp_path):
    def refused(path, message):
        before = path.read_bytes() if path.is_file() else None
        for words in (("cpu",), ("cuda:0",), ("--import", str(tmp_path / "times.json"))):
            done = run(*words, "--out", str(path))
            assert isinstance(done.exception, roller.errors.ArtifactError), (done.output, done.exception)
            assert re.search(message, str(done.exception)), done.exception
        assert before is None or path.read_bytes() == before

    refused(tmp_path, "expected a file, got a folder")
    refused(tmp_path / "x.json", r"expected a name in \.yaml or \.yml")
    (tmp_path / "notes.yaml").write_text("shopping: [milk]\n")
    refused(tmp_path / "notes.yaml", "expected a specification, got another file. Choose another name, or delete")
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\x00")
    refused(tmp_path / "binary.yml", "expected a specification, got another file")
    shipped = (spec_folder() / "v100.yaml").read_text()
    (tmp_path / "other.yaml").write_text(shipped)
    refused(tmp_path / "other.yaml", "expected a specification named 'other', got 'v100'")
    (tmp_path / "v100.yaml").write_text(shipped)
    done = run("cpu", "--out", str(tmp_path / "v100.yaml"))
    assert "expected a specification of this device, got one of another" in str(done.exception)
    assert not run.rounds
    for name in ("mine.yaml", "cpu.yml"):
        for _ in range(2):  # probed again: its own file is written anew
            assert run("cpu", "--out", str(tmp_path / name)).exit_code == 0


def test_one_round_does_not_replace_a_full_profile(run, tmp_path):
    path = profile_path(detect_cpu_without_probe().machine)
    for words in (("--quick",), ("--quick",), ()):  # quick, quick again, then full
        assert run("cpu", *words).exit_code == 0
    full = path.read_text()
    assert f"probed {full.split('probed ')[1][:10]} in one round" not in full
    done = run("cpu", "--quick")
    assert "expected no profile or a quick one, got a full one" in str(done.exception)
    assert path.read_text() == full and len(run.rounds) == 3
    assert run("cpu", "--quick", "--out", str(tmp_path / "quick.yaml")).exit_code == 0
    assert load_spec(tmp_path / "quick.yaml").description.endswith("in one round")
    path.write_text("kind: [")  # damaged: nothing to keep
    assert run("cpu", "--quick").exit_code == 0
