"""Folders that are replaced: by a whole one, and only where everything in them is roller's."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from roller.errors import ArtifactError
from roller.runtime import replace_saved_model
from roller.runtime.replace_saved_model import check_replaceable, replace_model_folder, unlisted_files
from roller_runtime.storage.verified_container import check_output_folder


@pytest.fixture
def model(tmp_path):
    """Return a folder as a model is saved in."""
    folder = tmp_path / "model"
    fill(folder, "old")
    return folder


def fill(folder: Path, content: str) -> None:
    """Write what stands for a model."""
    (folder / "kernels").mkdir(parents=True)
    body = {"format": "roller-model", "kernels": [{"file": "kernels/0000.so"}], "arrays": {"file": "arrays.bin"}}
    (folder / "model.json").write_text(json.dumps(body))
    for name in ("kernels/0000.so", "arrays.bin"):
        (folder / name).write_text(content)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_folder_of_rollers_is_replaced_whole(model):
    assert unlisted_files(model) == []
    with replace_model_folder(model, force=True) as target:
        fill(target, "new")
        assert (model / "arrays.bin").read_text() == "old", "it stays until the new one is whole"
    assert (model / "arrays.bin").read_text() == "new" and names(model.parent) == ["model"]


def test_without_force_it_stays_and_the_error_names_force(model):
    with pytest.raises(ArtifactError, match="Add --force to replace it"), replace_model_folder(model, force=False):
        pass
    assert (model / "arrays.bin").read_text() == "old"


@pytest.mark.parametrize("stop", [ArtifactError, KeyboardInterrupt])
def test_what_fails_leaves_the_earlier_one(model, stop):
    with pytest.raises(stop), replace_model_folder(model, force=True) as target:
        fill(target, "half")
        raise stop
    assert (model / "arrays.bin").read_text() == "old" and names(model.parent) == ["model"]


@pytest.mark.parametrize("name", ["notes.txt", "kernels/mine.c", "results/r.json", ".git/config"])
def test_what_others_put_there_is_never_removed(model, name):
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_text("mine")
    with pytest.raises(ArtifactError, match="which roller did not write"), replace_model_folder(model, force=True):
        pass
    assert (model / name).read_text() == "mine"


def test_what_others_put_there_meanwhile_is_never_removed(model):
    with pytest.raises(ArtifactError, match=r"'notes\.txt'"), replace_model_folder(model, force=True) as target:
        fill(target, "new")
        (model / "notes.txt").write_text("mine")
    assert (model / "notes.txt").read_text() == "mine" and names(model.parent) == ["model"]


def test_what_is_no_folder_of_rollers_is_refused(tmp_path, model):
    other, link, file, package = (tmp_path / n for n in ("other", "link", "file", "package"))
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    link.symlink_to(model)
    file.write_text("mine")
    package.mkdir()
    (package / "manifest.json").write_text('{"format": "deb"}')
    for path in (other, link, file, package):
        with pytest.raises(ArtifactError, match="no folder that roller wrote"):
            check_replaceable(path, force=True)


@pytest.mark.parametrize("name", ["main", "float32", "kernels/main", "file"])
def test_texts_of_a_manifest_are_no_files(model, name):
    body = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**body, "plan": {"float32": ["main", "kernels/main"]}}))
    (model / name).write_text("mine")
    with pytest.raises(ArtifactError, match="which roller did not write"), replace_model_folder(model, force=True):
        pass
    assert (model / name).read_text() == "mine"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)])
def test_what_only_bears_the_name_of_a_file_is_refused(model, make):
    (model / "arrays.bin").unlink()
    make(model / "arrays.bin")
    assert unlisted_files(model) == ["arrays.bin"]


def test_formats_are_compared_exactly(model):
    (model / "model.json").write_text('{"format": "roller-mine", "kernels": [], "arrays": {"file": "arrays.bin"}}')
    assert unlisted_files(model) is None


def test_without_an_exchange_nothing_is_lost(model, monkeypatch):
    monkeypatch.setattr(replace_saved_model, "_exchange_atomically", lambda one, other: False)
    with replace_model_folder(model, force=True) as target:
        fill(target, "new")
    assert (model / "arrays.bin").read_text() == "new" and names(model.parent) == ["model"]


def test_who_comes_between_the_renames_costs_neither_version(model, monkeypatch):
    rename = os.replace

    def other_comes_first(source, target):
        rename(source, target)
        if Path(source) == model:
            model.mkdir()
            (model / "theirs").write_text("theirs")

    monkeypatch.setattr(replace_saved_model, "_exchange_atomically", lambda one, other: False)
    monkeypatch.setattr(replace_saved_model.os, "replace", other_comes_first)
    with pytest.raises(ArtifactError, match="kept in"), replace_model_folder(model, force=True) as target:
        fill(target, "new")
    assert (model / "theirs").read_text() == "theirs"
    assert (model.parent / ".model.earlier/arrays.bin").read_text() == "old"
    assert (model.parent / ".model.new/model/arrays.bin").read_text() == "new"


def test_a_later_run_restores_what_a_killed_one_renamed(model):
    model.rename(model.parent / ".model.earlier")
    with pytest.raises(ZeroDivisionError), replace_model_folder(model, force=True):
        raise ZeroDivisionError
    assert (model / "arrays.bin").read_text() == "old" and names(model.parent) == ["model"]


def test_two_at_once_are_refused(model):
    with replace_model_folder(model, force=True) as target:
        fill(target, "new")
        with pytest.raises(ArtifactError, match="another process"), replace_model_folder(model, force=True):
            pass
    assert (model / "arrays.bin").read_text() == "new"


def test_paths_are_resolved_and_the_current_folder_is_refused(model, monkeypatch):
    monkeypatch.chdir(model / "kernels")
    for path in (".", "..", "../../model", "/"):
        with pytest.raises(ArtifactError, match="the current one or one above"):
            check_replaceable(Path(path), force=True)
    monkeypatch.chdir(model.parent)
    with replace_model_folder(Path("model/../model"), force=True) as target:
        fill(target, "new")
    assert (model / "arrays.bin").read_text() == "new" and names(model.parent) == ["model"]


@pytest.mark.parametrize("length", [250, 300])
def test_names_too_long_are_refused_before_any_work(tmp_path, length):
    with pytest.raises(ArtifactError, match="too long"):
        check_replaceable(tmp_path / ("m" * length), force=False)


def test_the_mode_is_kept_and_what_cannot_be_removed_is_a_warning(model, monkeypatch, caplog):
    def fails(folder):
        raise PermissionError(13, "Permission denied")

    model.chmod(0o750)
    monkeypatch.setattr(replace_saved_model.shutil, "rmtree", fails)
    with replace_model_folder(model, force=True) as target:
        fill(target, "new")
    assert (model / "arrays.bin").read_text() == "new" and model.stat().st_mode & 0o777 == 0o750
    assert "could not be removed" in caplog.text


def test_an_empty_or_absent_folder_needs_no_force(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        with replace_model_folder(tmp_path / name, force=False) as target:
            assert target == tmp_path / name


@pytest.mark.parametrize("make", ["file", "link", "folder"])
def test_what_lies_where_the_new_one_is_written_is_not_removed_unseen(model, make):
    stage = model.with_name(f".{model.name}.new")
    if make == "file":
        stage.write_text("mine")
    elif make == "link":
        stage.symlink_to(model)
    else:
        stage.mkdir()
        (stage / "mine.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"got something else. Move it\."), replace_model_folder(model, force=True):
        pytest.fail("it was written")
    assert os.path.lexists(stage) and unlisted_files(model) == []


def test_what_a_killed_run_left_half_written_is_removed(model):
    stage = model.with_name(f".{model.name}.new")
    (stage / f".{model.name}.abcd1234" / "kernels").mkdir(parents=True)
    with replace_model_folder(model, force=True) as new:
        shutil.copytree(model, new)
    assert not stage.exists() and unlisted_files(model) == []


@pytest.mark.parametrize("length", [240, 254, 255])
def test_a_new_folder_of_a_name_too_long_is_refused_too(tmp_path, length):
    with pytest.raises(ArtifactError, match="its name is too long"):
        check_output_folder(tmp_path / ("x" * length))
