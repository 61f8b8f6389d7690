"""``roller probe`` of a GPU: on a null device, through a bundle and back, and of devices no specification describes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from roller.backends.parse_device_names import DeviceProperties
from roller.cli import main as cli
from roller.cli.probe_gpu import base_spec_yaml
from roller.errors import SpecError
from roller.hardware import load_spec, parse_spec
from roller.probing.gpu import run_or_bundle_probes as probe_bundle
from roller.probing.gpu.correct_spec_by_driver_values import choose_base_spec, correct_by_driver_numbers
from roller_runtime.storage.verified_container import checksum

ROOT = Path(__file__).resolve().parents[2]
SPECS = [load_spec(n) for n in ("a100", "cpu-avx2", "h100", "h200", "k80", "mi250x", "mi300x", "mi50", "v100")]


def roller(*words):
    return CliRunner().invoke(cli.app, [str(w) for w in words], catch_exceptions=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What a bundle for a V100 brought home: from a null device, and as if it had been a real one."""
    folder = tmp_path_factory.mktemp("probe")
    patch = pytest.MonkeyPatch()
    patch.setattr(probe_bundle, "build_plan_image", lambda plan, spec: b"image")
    done = roller("probe", "cuda:0", "--bundle", folder / "b", "--device", "v100")
    patch.undo()
    assert done.exit_code == 0, done.output
    assert "9 probes" in done.output and "python -m roller.runtime.bundle run . --json times.json" in done.output
    # A machine with Python and NumPy alone: nothing of what the command line needs.
    blocked = "; ".join(f"sys.modules[{m!r}] = None" for m in ("yaml", "typer", "rich", "tvm", "tvm_ffi", "cupy"))
    words = ["run", ".", "--json", str(folder / "null.json"), "--device", "null:v100?noise=0.003"]
    code = f"import sys; {blocked}; from roller.runtime import bundle as b; print(b.__file__); b.main({words!r})"
    where = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder / "b", timeout=120, env=where
    )
    assert run.returncode == 0, run.stderr
    assert str(folder / "b" / "roller") in run.stdout, "the copy in the bundle runs, not the checkout"
    assert "115 right and timed, 0 not" in re.sub(r"\d+ right", "115 right", run.stdout)
    data = json.loads((folder / "null.json").read_text())
    data |= {"kind": "cuda", "device": "Tesla V100-SXM2-16GB"}
    (folder / "real.json").write_text(json.dumps({**data, "checksum": checksum(data)}))
    return folder


def test_results_become_a_specification(results, tmp_path):
    out = tmp_path / "mine.yaml"
    done = roller("probe", "--import", results / "real.json", "--out", out)
    assert done.exit_code == 0, done.output
    text, shipped = out.read_text(), (ROOT / "hardware_specs" / "v100.yaml").read_text()
    assert "name: mine\n" in text and re.search(r"note: .*probed \d{4}-\d\d-\d\d by roller probe on Tesla V100", text)
    assert shipped.splitlines()[0] in text, "comments of the shipped file survive"
    assert 'datasheet: 64, note: "probed' in text, "measured values stand beside the others"
    spec, before = parse_spec(text, "mine"), load_spec("v100")
    measured = {p for p, source in spec.sources.items() if source == "measured"}
    assert {"clock_hz", "execution.barrier_s", "memory_layers.l2.capacity_bytes"} <= measured
    assert len(measured) >= 26
    assert spec.accuracy.prediction_error == 0.5, "errors found with other numbers are not claimed for these"
    for path, value in spec.values().items():
        if path.startswith("accuracy."):
            continue
        assert value == pytest.approx(before.values().get(path, value), rel=0.07), path
    again = roller("probe", "--import", results / "real.json", "--out", out)
    assert again.exit_code == 0 and out.read_text() == text, "a second import changes nothing"


def test_two_imports_as_json(results):
    found = json.loads(roller("probe", "--import", results / "null.json", "--json").output)
    assert found["path"] is None and len(found["values"]) >= 26 and found["refused"] == {} and found["failed"] == {}


def test_what_a_null_device_says_is_not_written(results, tmp_path):
    for words in (("--import", results / "null.json"), ("null:v100",)):
        done = roller("probe", *words, "--out", tmp_path / "x.yaml")
        assert done.exit_code != 0 and "its times are not measured" in str(done.exception)
    assert not (tmp_path / "x.yaml").exists()


def test_a_device_that_is_here(tmp_path):
    done = roller("probe", "null:v100?noise=0.003", "--quick", "--set", "execution.launch_s=7e-6")
    assert done.exit_code == 0, done.output
    assert re.search(r"execution.launch_s\s+(7|6.9|7.0)\d*e-06", done.output), done.output
    assert "written nowhere: give --out" in done.output


def test_refusals_say_what_to_write(tmp_path, results):
    done = roller("probe", "v100")
    assert "--bundle DIR --device v100" in str(done.exception)
    done = roller("probe", "cuda:0", "--bundle", tmp_path / "b")
    assert "the specification nearest to the device, got 'cuda:0'" in str(done.exception)
    mi50 = tmp_path / "mi50.yaml"
    mi50.write_text((ROOT / "hardware_specs" / "mi50.yaml").read_text())
    done = roller("probe", "--import", results / "real.json", "--out", mi50)
    assert "'language': 'hip'}, the device is" in str(done.exception) and "Choose another --out" in str(done.exception)


def ada():
    stated = {
        "units": 128, "teu.lanes": 32, "limits.threads_per_unit": 1536, "limits.blocks_per_unit": 24,
        "memory_layers.shared.capacity_bytes": 102400, "memory_layers.l2.capacity_bytes": 75497472,
        "memory_layers.global.capacity_bytes": 25_300_000_000, "limits.registers_per_unit": 65536,
    }  # fmt: skip
    return DeviceProperties("Another GPU", "sm_89", 128, 25_300_000_000, 75497472, (), tuple(stated.items()))


def test_an_architecture_nobody_wrote_down_starts_from_the_nearest(tmp_path):
    spec = correct_by_driver_numbers(choose_base_spec(ada(), SPECS), ada())
    assert spec.target == {"language": "cuda", "arch": "sm_89"} and spec.units == 128
    assert spec.layer("l2").capacity_bytes == 75497472 and spec.sources["units"] == "detected"
    assert spec.sources["limits.threads_per_block"] == "datasheet"
    text = base_spec_yaml(spec, tmp_path / "ada.yaml")
    assert "name: ada\n" in text and parse_spec(text, "ada").content_key != load_spec("h100").content_key
    assert [p.name for p in probe_bundle.probe_plans(spec)][-1] == "dram"


def test_a_device_like_its_specification_keeps_the_file(tmp_path):
    v100 = DeviceProperties("Tesla V100", "sm_70", 80, 16_900_000_000, 6291456, (), (("units", 80),))
    spec = correct_by_driver_numbers(choose_base_spec(v100, SPECS), v100)
    assert spec is next(s for s in SPECS if s.name == "v100")
    assert "# NVIDIA Tesla V100" in base_spec_yaml(spec, tmp_path / "x.yaml")
    pcie = DeviceProperties("H100 PCIe", "sm_90", 114, 85_000_000_000, 52428800, (), (("units", 114),))
    assert correct_by_driver_numbers(choose_base_spec(pcie, SPECS), pcie).units == 114
    with pytest.raises(SpecError, match="expected an architecture like"):
        choose_base_spec(DeviceProperties("Strange", "xe_12"), SPECS)
