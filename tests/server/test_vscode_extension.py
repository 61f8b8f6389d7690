"""The VS Code extension: its own tests run, and it and the server mean the same settings, commands and protocol."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pygls")

from roller.server.lsp.commands import COMMANDS
from roller.server.lsp.language_server import PROTOCOL
from roller.server.lsp.settings import Settings, SettingsError

_FOLDER = Path(__file__).parents[2] / "editors" / "vscode"


@pytest.mark.slow
def test_its_own_tests() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    tests = [str(path) for path in sorted((_FOLDER / "test").glob("*.test.js"))]
    ran = subprocess.run([node, "--test", *tests], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert int(re.search(r"^# pass (\d+)", ran.stdout, re.MULTILINE)[1]) >= 20  # type: ignore[index]


def test_settings_are_those_of_the_server() -> None:
    manifest = json.loads((_FOLDER / "package.json").read_text())
    named = {name.removeprefix("roller.") for name in manifest["contributes"]["configuration"]["properties"]}
    for name in named - {"python"}:  # which the extension alone needs
        with pytest.raises(SettingsError, match="expected"):
            Settings().updated_from_json({name: {"of": "no type"}})
    defaults = {
        name.removeprefix("roller."): one["default"]
        for name, one in manifest["contributes"]["configuration"]["properties"].items()
    }
    assert Settings().updated_from_json({name: defaults[name] for name in named}) == Settings()


def test_commands_and_protocol_are_those_of_the_server() -> None:
    sources = {path.name: path.read_text() for path in (_FOLDER / "src").glob("*.js")}
    assert re.search(r"PROTOCOL = (\d+);", sources["protocol.js"])[1] == str(PROTOCOL)  # type: ignore[index]
    asked = {name for text in sources.values() for name in re.findall(r'ask\("(roller\.\w+)"', text)}
    assert asked == set(COMMANDS)
