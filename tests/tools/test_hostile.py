"""Hostile machines: what each condition changes, without starting one."""

from pathlib import Path

import pytest

from tools import hostile
from tools.hostile import CONDITIONS, TOGETHER, Setting, command_of


@pytest.fixture
def setting(tmp_path):
    return Setting(tmp_path)


def test_every_condition_is_in_one_run():
    assert sorted(name for names in TOGETHER for name in names) == sorted(CONDITIONS)


@pytest.mark.parametrize(("name", "gone"), [("avx512", ("avx512f", "amx_tile")), ("avx2", ("avx512f", "avx2", "fma"))])
def test_masked_features_are_gone_and_others_stay(setting, monkeypatch, name, gone):
    text = "processor\t: 0\nflags\t\t: sse2 avx avx2 fma avx512f amx_tile\nbogomips : 1\n"
    monkeypatch.setattr(Path, "read_text", lambda *_: text)
    CONDITIONS[name](setting)
    monkeypatch.undo()
    (command,) = setting.commands
    file = command.split()[2]
    kept = Path(file).read_text()
    assert command == f"mount --bind {file} /proc/cpuinfo" and setting.namespaces == {"mount"}
    assert not set(gone) & set(kept.split()) and {"sse2", "avx", "bogomips"} <= set(kept.split())


def test_what_a_run_needs_comes_before_pytest(setting, monkeypatch):
    monkeypatch.setattr(hostile.os, "geteuid", lambda: 1000)
    hostile.no_network(setting)
    hostile.read_only_home(setting)
    command = command_of(setting, [])
    assert command[:5] == ["unshare", "--map-root-user", "--mount", "--net", "sh"]
    assert command[6].endswith('&& exec "$@"') and f"mount -t tmpfs -o ro none {setting.folder}/home" in command[6]
    assert command[command.index("-m", 9) :][:2] == ["-m", "pytest"] and "not slow" in command


def test_a_hidden_package_is_not_installed(tmp_path):
    import os
    import subprocess
    import sys

    (tmp_path / "sitecustomize.py").write_text(hostile._HIDE)
    code = "import importlib.util as u; print(u.find_spec('yaml'), u.find_spec('json') is not None)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "HOSTILE_HIDDEN": "yaml"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "True"]
