"""Unmodified training scripts give a profile: nothing is trained, written or sent."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

torch = pytest.importorskip("torch")

from roller.errors import ModelError, RollerError  # noqa: E402
from roller.insight.capture.script_tracer import ScriptTracer, trace_script  # noqa: E402
from roller.insight.step_profile.profiling import profile, profile_source_file_kind  # noqa: E402
from roller.insight.trace.options import TraceOptions  # noqa: E402

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
#: Script -> what its trace says of it; the package it needs besides PyTorch.
EXPECTED = {
    "own_loop": ({"batch": 16, "accumulate": 1, "optimizer": "Adam", "amp": None, "networks": {"model": "Net"}}, ""),
    "loader_workers": ({"batch": 8, "accumulate": 1, "optimizer": "SGD", "networks": {"model": "Sequential"}}, ""),
    "accumulation": (
        {"batch": 5, "accumulate": 4, "optimizer": "AdamW", "checkpoint": ["blocks.0", "blocks.1", "blocks.2"]}, "",
    ),
    "amp_scaler": ({"batch": 32, "accumulate": 1, "optimizer": "Adam", "amp": "fp16", "scales_loss": True}, ""),
    "two_optimizers": (
        {"batch": 12, "accumulate": 1, "optimizer": "RMSprop, Adam",
         "networks": {"generator": "Sequential", "discriminator": "Sequential"}}, "",
    ),
    "lightning_module": (
        {"batch": 10, "accumulate": 2, "optimizer": "AdamW", "networks": {"model": "Classifier"}}, "lightning",
    ),
    "hf_trainer": (
        {"batch": 4, "accumulate": 2, "optimizer": "AdamW", "amp": "bf16", "networks": {"model": "GPT2LMHeadModel"}},
        "transformers",
    ),
    "accelerate_loop": (
        {"batch": 8, "accumulate": 3, "optimizer": "SGD", "amp": "fp16", "scales_loss": True}, "accelerate",
    ),
}  # fmt: skip
NEVER = "import time\nwhile True:\n    time.sleep(0.01)\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a folder with all scripts, which is the working directory."""
    folder = tmp_path / "project"
    shutil.copytree(SCRIPTS, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return folder


def _files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_every_script_has_its_expectations_and_none_has_providers():
    assert sorted(EXPECTED) == sorted(path.stem for path in SCRIPTS.glob("*.py"))
    assert {profile_source_file_kind(path) for path in SCRIPTS.glob("*.py")} == {"script"}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_an_unmodified_script_gives_a_profile_and_leaves_nothing(name, project):
    expected, package = EXPECTED[name]
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    before = _files(project)
    step = trace_script(f"{name}.py", device="a100")
    assert _files(project) == before
    assert {key: step.options[key] for key in expected} == expected
    assert (step.options["mode"], step.options["changed_parameters"]) == ("script", 0)
    assert {"forward", "backward", "optimizer"} <= {operator.phase for operator in step.steady()}
    found = profile(step, "a100")
    samples = expected["batch"] * step.options["accumulate"]
    assert (found.name, found.batch, found.samples) == (f"{name}.py", expected["batch"], samples)
    assert found.total_bytes == sum(found.memory_parts.values())


@pytest.mark.slow
def test_a_profile_of_a_script_takes_arguments_a_batch_and_devices(project):
    small = profile("own_loop.py", "a100", arguments=["--width", "4"])
    wide = profile("own_loop.py", "a100", arguments=["--width", "64"], batch=32)
    assert (small.batch, wide.batch) == (16, 32)
    assert wide.memory_parts["parameter"] > 8 * small.memory_parts["parameter"]


@pytest.mark.slow
def test_a_step_of_a_script_is_traced_again_for_other_batches(project):
    step = trace_script("own_loop.py", batch=8, device="a100")
    assert step.at(device="h100").options["batch"] == 8
    other = step.at(batch=24)
    assert (other.options["batch"], other.options["arguments"]) == (24, [])
    with pytest.raises(ModelError, match="amp: expected none for a training script, which has its own"):
        step.at(amp="fp16")


@pytest.mark.slow
def test_a_script_that_never_trains_is_told_so_when_patience_is_over(project):
    (project / "never.py").write_text(NEVER)
    begun = time.monotonic()
    with pytest.raises(ModelError, match=r"got 1 seconds, the last at .*never.py:\d, without a step of an optimizer"):
        trace_script("never.py", patience_s=1)
    assert time.monotonic() - begun < 60


@pytest.mark.slow
def test_its_process_ends_with_the_request_and_its_folder_is_removed(project, tmp_path):
    (project / "folder.py").write_text("import tempfile\nraise OSError(tempfile.mkdtemp())\n")
    with ScriptTracer("folder.py") as tracer, pytest.raises(ModelError, match="roller-script-") as said:
        tracer.step(TraceOptions())
    assert tracer._process is None
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("roller-script-")]
    assert str(tmp_path) in str(said.value)


@pytest.mark.slow
def test_the_verb_asks_before_it_runs_a_script(project):
    def roller(*arguments, given=subprocess.DEVNULL):
        paths = os.pathsep.join(p for p in sys.path if p)
        return subprocess.run(
            [sys.executable, "-m", "roller.cli.main", "profile", *arguments], stdin=given, capture_output=True,
            text=True, env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip

    refused = roller("own_loop.py")
    assert refused.returncode == 2
    assert "expected permission to run it, got no terminal to ask on. Pass --yes." in refused.stderr
    done = roller("own_loop.py", "--yes", "-d", "h100", "--", "--batch-size", "20")
    assert done.returncode == 0, done.stderr
    assert "own_loop.py: predicted on h100, batch 20" in done.stdout


def test_what_does_not_apply_to_a_kind_of_file_is_refused(tmp_path):
    entry = tmp_path / "entry.py"
    entry.write_text("def model_provider(): ...\n")
    assert profile_source_file_kind(entry) == "entry"
    with pytest.raises(RollerError, match="arguments: expected none but for a training script"):
        profile(entry, arguments=["--width", "3"])
    script = tmp_path / "script.py"
    script.write_text(NEVER)
    with pytest.raises(RollerError, match="measure: expected an entry file, which can run, got a script"):
        profile(script, measure=True)
    with pytest.raises(ModelError, match="patience: expected seconds above 0, got 0"):
        profile(script, patience_s=0)
    with pytest.raises(ModelError, match="expected a training script, got no such file"):
        trace_script(tmp_path / "none.py")
