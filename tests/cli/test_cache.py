"""``roller cache``: info, clear, export and import from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import roller
from roller.cli.main import main

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line; return its exit code, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main(["cache", *arguments])
        out, err = capsys.readouterr()
        return int(str(done.value.code)), out, err

    return run


def test_info_clear_export_import(cli: Cli, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = cli("info", "--json")
    empty = json.loads(out)
    assert (code, empty["folder"], empty["entries"], empty["artifact_bytes"]) == (0, str(cache_dir), 0, 0)
    assert not cache_dir.exists(), "looking makes nothing"

    kernel = roller.compile(roller.ops.matmul(24, 20, 16), device="cpu", top_k=2)
    info = json.loads(cli("info", "--json")[1])
    assert (info["entries"], info["entries_measured"], info["artifacts"], info["measurements"]) == (1, 1, 1, 2)
    size = sum(p.stat().st_size for p in (cache_dir / "objects").rglob("*") if p.is_file())
    assert info["artifact_bytes"] == size > 1000
    assert info["database_bytes"] > 4096
    text = cli("info")[1]
    assert str(cache_dir) in text
    assert "kernels:      1, of which 1 ran on their device" in text

    file = tmp_path / "kernels.tar.gz"
    code, out, err = cli("export", str(file))
    assert code == 0, err
    assert f"wrote 1 kernels and 2 measurements to {file}" in out

    code, out, _ = cli("clear", "--json")
    assert (code, json.loads(out)["artifacts_removed"]) == (0, 1)
    info = json.loads(cli("info", "--json")[1])
    assert (info["entries"], info["artifacts"], info["artifact_bytes"], info["measurements"]) == (0, 0, 0, 2)
    assert cli("clear", "--records")[0] == 0
    assert json.loads(cli("info", "--json")[1])["measurements"] == 0

    code, out, _ = cli("import", str(file), "--json")
    assert (code, json.loads(out)) == (0, {"folder": str(cache_dir), "entries": 1, "written": 1, "measurements": 2})
    monkeypatch.setattr(roller.compiler.pipeline, "_compile_uncached", None)  # from here on only the cache answers
    assert roller.compile(roller.ops.matmul(24, 20, 16), device="cpu", top_k=2).artifact == kernel.artifact


def test_errors_are_one_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("hello")
    for arguments, message in (
        (("import", str(tmp_path / "absent.tar")), "cannot import"),
        (("import", str(tmp_path / "text")), "cannot import"),
        (("export", str(tmp_path / "no" / "k.tar")), "does not exist. Create it first."),
    ):
        code, out, err = cli(*arguments)
        assert (code, out) == (1, "")
        assert err.startswith("roller: error: ")
        assert message in err
        assert err.count("\n") == 1


def test_compile_no_cache(cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flag, made in (("--no-cache", False), ("--cache", True)):
        with pytest.raises(SystemExit, match="0"):
            main(["compile", "matmul(24, 20, 16)", "--device", "v100", "--top-k", "1", flag])
        assert "not measured" in capsys.readouterr().out
        assert cache_dir.exists() is made


def test_list_drop_and_limit(cli: Cli, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = cli("list")
    assert (code, out) == (0, f"no kernels in {cache_dir}\n")
    assert json.loads(cli("list", "--json")[1]) == []
    for n in (24, 25, 26):
        roller.compile(roller.ops.matmul(n, 20, 16), device="v100", top_k=1)
    text = cli("list")[1]
    assert "matmul(26x16, 16x20 float32)" in text and "v100" in text
    assert "predicted: chosen by prediction, for a device that was not there" in text
    assert "3 kernels, " in text
    rows = json.loads(cli("list", "--json")[1])
    assert {(r["operator"], r["device"], r["status"], r["measured_s"]) for r in rows} == {
        ("matmul", "v100", "predicted", None)
    }
    assert cli("list", "--device", "h200")[1] == f"no kernels in {cache_dir}\n"

    gone = next(r for r in rows if r["arguments"].startswith("25x16"))
    code, out, _ = cli("drop", gone["key"][:12])
    assert code == 0 and out.startswith("removed matmul(25x16, 16x20 float32) for v100, ")
    code, out, err = cli("drop", gone["key"][:12])
    assert (code, out) == (1, "") and "expected the beginning of a kernel's key" in err and err.count("\n") == 1

    assert cli("limit")[1].startswith("4 GiB (the default): beyond it, what was used least recently goes")
    code, out, _ = cli("limit", "1k")
    assert code == 0 and "1 KiB (roller cache limit)" in out and "removed 2 artifacts" in out
    assert json.loads(cli("info", "--json")[1])["limit_bytes"] == 1024
    assert "limit:        1 KiB of artifacts (roller cache limit)" in cli("info")[1]
    monkeypatch.setenv("ROLLER_CACHE_SIZE", "none")
    assert json.loads(cli("limit", "--json")[1])["limit_bytes"] is None
    assert cli("limit", "much")[0] == 1
