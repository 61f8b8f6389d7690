"""A verb loads what it needs: the table of verbs imports nothing by itself."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from roller.cli.lazy_commands import VERBS, LazyCommands
from roller.cli.main import app

#: What constructing one operator for a named spec has no use for, whatever it costs to load.
UNUSED = {
    "numpy.ma", "numpy.random", "onnx", "roller.artifact", "roller.backends.build", "roller.backends.device_process",
    "roller.backends.cpu", "roller.backends.cuda", "roller.cli.bundle", "roller.cli.compile_model",
    "roller.compiler.autotune", "roller.compiler.compiled_kernel", "roller.emulator", "roller.explanation",
    "roller.models.batch", "roller.models.graph", "roller.models.onnx", "roller.models.session", "roller.probing",
    "roller.report", "roller.te", "sqlite3", "tvm", "tvm_ffi",
}  # fmt: skip


def modules_after(*words: str) -> set[str]:
    code = (
        "import sys\nfrom roller.cli.main import main\n"
        f"try: main({list(words)!r})\nexcept SystemExit as end: assert end.code == 0\n"
        "print('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("device", ["v100", "cpu-avx512"])
def test_construct_loads_no_other_verb_and_no_later_stage(device):
    loaded = modules_after("construct", "matmul(m=64,n=64,k=64)", "-d", device)
    assert "roller.construction.constructor" in loaded
    assert sorted(UNUSED & loaded) == []


def test_the_version_loads_no_verb():
    loaded = modules_after("--version")
    assert sorted(m for m in loaded if m in {home.partition(":")[0] for home in VERBS.values()}) == []
    assert "numpy" not in loaded


def test_every_verb_is_found_at_its_home():
    commands = LazyCommands(VERBS)
    assert [commands[name].name for name in commands] == list(VERBS)


def test_a_wrong_verb_is_told_the_nearest_one():
    done = CliRunner().invoke(app, ["constrct"])
    assert done.exit_code == 2 and "'construct'" in done.stderr


def test_help_lists_the_verbs_in_order():
    done = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"})
    rows = [word for line in done.stdout.splitlines() if (word := line.strip("│ ").partition(" ")[0]) in VERBS]
    assert rows == list(VERBS)
