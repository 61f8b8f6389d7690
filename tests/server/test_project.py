"""Files of a project: what is outside of it, or no source, is neither read nor written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from roller.server.project_files import Project, ProjectError, digest_of_bytes, file_mtime_size_inode
from tests.offenders import every

_OUTSIDE = (
    "", "/etc/hostname", "../outside.py", "a/../../outside.py", "link.py", "folder.py", "linked/outside.py", "a\0.py",
    "\0", "..\\outside.py", "C:\\x.py", "notes.txt", "absent.py", "pipe.py", "loop.py", "~/x.py", "a" * 5000 + ".py",
    ".", "..", "secret.py/../../outside.py",
)  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder = tmp_path / "project"
    (folder / "folder.py").mkdir(parents=True)
    (folder / "a").mkdir()
    (tmp_path / "outside.py").write_text("secret = 1\n")
    (folder / "pyproject.toml").write_text("")
    (folder / "train.py").write_bytes("x = 'π'\r\n".encode())
    (folder / "notes.txt").write_text("no source")
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "loop.py").symlink_to("loop.py")
    (folder / "inner.py").symlink_to("train.py")
    os.mkfifo(folder / "pipe.py")
    return Project(folder / "train.py")


@every("name", _OUTSIDE)
def test_what_is_outside_is_refused(project: Project, name: str) -> None:
    before = (project.folder.parent / "outside.py").read_text()
    for act in (project.read, project.path_of, lambda n: project.write(n, "x = 2\n", digest_of_bytes(before.encode()))):
        with pytest.raises(ProjectError) as refused:
            act(name)
        assert "secret" not in str(refused.value).replace(repr(name), "").replace(name or "?", "")
        assert len(str(refused.value)) < 1000
    assert (project.folder.parent / "outside.py").read_text() == before


@every("name", (None, 7, b"train.py", ["train.py"]))
def test_names_are_texts(project: Project, name: object) -> None:
    with pytest.raises(ProjectError, match="expected a Python file"):
        project.read(name)  # type: ignore[arg-type]


def test_links_within_the_project_are_its_files(project: Project) -> None:
    assert project.read("inner.py").text == project.read("train.py").text == "x = 'π'\r\n"
    assert project.name_of(project.folder / "inner.py") == "train.py"


def test_a_save_of_an_old_text_is_refused(project: Project) -> None:
    first = project.read("train.py")
    saved = project.write("train.py", "x = '🙂'\r\n", first.digest)
    assert (project.folder / "train.py").read_bytes() == "x = '🙂'\r\n".encode()
    with pytest.raises(ProjectError, match="expected the file as it was read"):
        project.write("train.py", "x = 3\n", first.digest)
    assert project.read("train.py") == saved
    (project.folder / "train.py").unlink()
    with pytest.raises(ProjectError, match="got none"):
        project.write("train.py", "x = 3\n", saved.digest)
    assert not (project.folder / "train.py").exists()


def test_a_save_keeps_the_mode_and_a_link(project: Project) -> None:
    os.chmod(project.folder / "train.py", 0o640)
    project.write("inner.py", "x = 4\n", project.read("inner.py").digest)
    assert (project.folder / "inner.py").is_symlink()
    assert (project.folder / "train.py").read_text() == "x = 4\n"
    assert (project.folder / "train.py").stat().st_mode & 0o7777 == 0o640


def test_a_text_that_is_none_is_refused_when_saved(project: Project) -> None:
    with pytest.raises(ProjectError, match="expected text"):
        project.write("train.py", "x = '\ud800'", project.read("train.py").digest)
    assert project.read("train.py").text == "x = 'π'\r\n"


def test_what_is_no_source_is_not_read(project: Project) -> None:
    (project.folder / "latin.py").write_bytes("x = 'ü'\n".encode("latin-1"))
    (project.folder / "large.py").write_bytes(b"#" * ((4 << 20) + 1))
    with pytest.raises(ProjectError, match=r"latin\.py: expected text in UTF-8"):
        project.read("latin.py")
    with pytest.raises(ProjectError, match=r"large\.py: expected at most 4 MiB"):
        project.read("large.py")


@every("name", ("absent.py", "notes.txt", "folder.py", "pipe.py"))
def test_an_entry_is_a_python_file(project: Project, name: str) -> None:
    with pytest.raises(ProjectError, match="expected a Python file"):
        Project(project.folder / name)


def test_messages_name_files_relative_to_the_project(project: Project) -> None:
    data = {"text": f"{project.folder}/train.py:3", "s": [1.0, float("inf"), float("nan")], "whole": 3, "no": None}
    assert project.relative(data) == {"text": "train.py:3", "s": [1.0, None, None], "whole": 3, "no": None}


def test_the_state_of_a_file_changes_with_it(project: Project) -> None:
    before = file_mtime_size_inode(project.entry)
    project.write("train.py", "x = 5\n", project.read("train.py").digest)
    after = file_mtime_size_inode(project.entry)
    project.entry.unlink()
    assert len({before, after, file_mtime_size_inode(project.entry)}) == 3


def test_a_source_keeps_the_encoding_that_it_declares(project: Project) -> None:
    for data in ("# coding: latin-1\nx = 'é'\r\n".encode("latin-1"), b"\xef\xbb\xbfx = 1\n"):
        project.entry.write_bytes(data)
        found = project.read("train.py")
        project.write("train.py", found.text + "# end\n", found.digest)
        assert project.entry.read_bytes() == data + b"# end\n"
    for wrong in (b"x = '\xff'\n", b"# coding: rot13\n", b"# coding: nope\n", b"# coding: utf-7\n+AGEAYg-\n+-"):
        project.entry.write_bytes(wrong)
        with pytest.raises(ProjectError, match=r"^train.py: expected text in"):
            project.read("train.py")
    project.entry.write_bytes(b"# coding: latin-1\n")
    with pytest.raises(ProjectError, match=r"LATIN-1|ISO-8859-1"):
        project.write("train.py", "# coding: latin-1\n# π\n", project.read("train.py").digest)


def test_a_file_that_may_only_be_read_is_not_replaced(project: Project) -> None:
    project.entry.chmod(0o444)
    with pytest.raises(ProjectError, match="may only be read"):
        project.write("train.py", "y = 1\n", project.read("train.py").digest)
