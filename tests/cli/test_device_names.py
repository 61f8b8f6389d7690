"""A device is one device however its name is written."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import roller
from roller.backends.parse_device_names import is_reachable_device_name, parse_device_name
from roller.cli.main import app
from roller.errors import LaunchError
from roller.targets import DEVICES, canonical_device_name, is_simulated_device

PREDICT = ("predict", "matmul(64, 64, 64)", "--tile", "register=4,32", "--device")


@pytest.mark.parametrize("kind", sorted(DEVICES))
def test_every_kind_of_device_is_known_in_either_case(kind):
    name = f"{kind}:1" if DEVICES[kind].numbered else kind
    assert canonical_device_name(name.upper()) == name
    assert is_reachable_device_name(name.upper()) == is_reachable_device_name(name)
    assert is_simulated_device(name.title()) == is_simulated_device(name)
    if DEVICES[kind].worker and DEVICES[kind].numbered:
        assert parse_device_name(name.upper()) == parse_device_name(name)


def test_names_and_paths_of_specifications_keep_their_case():
    for name in ("null:Folder/Mine.yaml", "H100", "Mine.yaml", "CPU/mine.yaml", "./CUDA:0.yaml"):
        assert canonical_device_name(name) == name


def test_an_unprobed_processor_is_told_so_in_either_case(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLER_PROFILE_DIR", str(tmp_path / "profiles"))
    upper, again = (CliRunner().invoke(app, [*PREDICT, name]) for name in ("CPU", "cpu"))
    assert "Run `roller probe cpu`" in upper.stderr and again.stderr == ""
    assert upper.stdout == again.stdout


@pytest.mark.parametrize("verb", [("probe",), (*PREDICT,), ("compile", "matmul(8, 8, 8)", "-d")])
def test_a_gpu_that_is_not_here_is_refused_alike(verb):
    upper, lower = (CliRunner().invoke(app, [*verb, name]) for name in ("CUDA:0", "cuda:0"))
    assert upper.exit_code == lower.exit_code != 0 and isinstance(upper.exception, type(lower.exception))
    assert str(upper.exception).lower() == str(lower.exception).lower()


@pytest.mark.parametrize("options", [("--bundle", "x"), ("--import", "x")])
def test_a_processor_is_no_gpu_to_probe_elsewhere_in_either_case(options):
    said = {str(CliRunner().invoke(app, ["probe", name, *options]).exception) for name in ("CPU", "cpu")}
    assert len(said) == 1 and "expected a GPU" in said.pop()


def test_the_python_call_takes_either_case():
    expr = roller.ops.matmul(64, 64, 64)
    assert roller.construct(expr, "CPU", top_k=1) == roller.construct(expr, "cpu", top_k=1)
    with pytest.raises(LaunchError):
        roller.compile(expr, "CUDA:0", cache=False)


def test_a_model_is_not_compiled_for_cores_this_processor_does_not_have(monkeypatch):
    from roller.models import compile as stages

    monkeypatch.setattr(stages, "choose_batch_workers", lambda *given: pytest.fail("work was begun"))
    other = roller.load_spec("cpu", {"units": roller.load_spec("cpu").units + 1})
    with pytest.raises(roller.RollerError, match=r"cpu: units: expected the \d+ cores of this machine.*--threads"):
        stages.resolve_target_and_workers(other)


def test_settings_of_a_gpu_to_probe_are_read_before_it_is_opened():
    done = CliRunner().invoke(app, ["probe", "cuda:0", "--set", "units=many"])
    assert "--set: expected FIELD=NUMBER, got 'units=many'" in str(done.exception)
