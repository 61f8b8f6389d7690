"""Folders that travel appear whole or not at all, and are refused in one set of words, whatever kind they are of."""

from __future__ import annotations

import json
import re

import pytest

from roller.errors import ArtifactError
from roller.runtime.container_kinds import KINDS
from roller.runtime.resumable_run import ResumedRun
from roller_runtime.storage.verified_container import MANIFEST, Container, DocumentKind, checksum, write_container
from tests.offenders import every

DAMAGED = "not valid JSON .* Copy the box again."
BOX = DocumentKind("a-box", 3, "a box", "Copy the box again.", "Make one.", lambda m: m["files"])
RESULTS = DocumentKind("a-result", 1, "a result")


def boxed(path):
    with write_container(path) as work:
        work.write_manifest(BOX, {"files": {"in/one": work.add("in/one", b"1"), "two": work.add("two", b"{}")}})
    return path


@pytest.fixture
def box(tmp_path):
    return boxed(tmp_path / "b")


def resealed(folder, change):
    """Change a manifest as somebody would who knows its checksum."""
    data = json.loads((folder / MANIFEST).read_text())
    change(data)
    (folder / MANIFEST).write_text(json.dumps({**data, "checksum": checksum(data)}))


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError, OSError])
def test_nothing_is_left_of_a_folder_that_was_not_finished(tmp_path, stop):
    with pytest.raises(ArtifactError if stop is OSError else stop), write_container(tmp_path / "b") as work:
        work.add("in/half", b"written")
        raise stop
    assert list(tmp_path.iterdir()) == []


def test_a_finished_folder_has_a_manifest_that_says_what_it_holds(tmp_path):
    with write_container(tmp_path / "b") as work:
        manifest = work.write_manifest(BOX, {"sizes": (1, 2)})
        assert not (tmp_path / "b").exists()
    found = json.loads((tmp_path / "b" / MANIFEST).read_text())
    plain = {"format": "a-box", "version": 3, "sizes": [1, 2]}
    assert found == manifest == {**plain, "checksum": checksum(plain)}
    with pytest.raises(ArtifactError), write_container(tmp_path / "b"):
        raise AssertionError("a folder that holds something was given out")


def test_what_was_written_is_read(box):
    opened = Container(box, BOX)
    assert opened.read("in/one") == b"1" and opened.json("two") == {} and BOX.is_kind_of_folder(box)


@every(("alter", "text"), [
    (lambda b: (b / "two").unlink(), "two: cannot read it .* Copy the box again."),
    (lambda b: (b / "two").write_bytes(b"[]"), "two: checksum does not match the manifest; .* Copy the box again."),
    (lambda b: (b / MANIFEST).unlink(), "cannot read it .* Make one."),
    (lambda b: (b / MANIFEST).write_text("{"), DAMAGED),
    (lambda b: (b / MANIFEST).write_bytes(b"\xff"), DAMAGED),
    (lambda b: (b / MANIFEST).write_text("[" * 9_999), DAMAGED),
    (lambda b: (b / MANIFEST).write_text("[]"), "expected a box .*, got another kind of file. Check the path."),
    (lambda b: (b / MANIFEST).write_text((b / MANIFEST).read_text().replace(": 3", ": 2")), "checksum does not match"),
    (lambda b: resealed(b, lambda m: m.update(format="a-bag")), "expected a box .*, got 'a-bag'. Check the path."),
    (lambda b: resealed(b, lambda m: m.update(version=4)), "expected version 3 or older, got 4. Upgrade roller."),
    (lambda b: resealed(b, lambda m: m.update(version=True)), "got True. Upgrade roller."),
    (lambda b: resealed(b, lambda m: m.pop("files")), "is damaged .*'files'.* Copy the box again."),
    (lambda b: resealed(b, lambda m: m.update(files=7)), "the manifest is damaged .* Copy the box again."),
    *((lambda b, n=name: resealed(b, lambda m: m["files"].update({n: "0"})), "outside the folder. Do not trust it.")
      for name in ("../b2", "/etc/hostname", "in/../../b2", "..\\x")),
])  # fmt: skip
def test_what_is_wrong_is_one_sentence_with_a_remedy(tmp_path, alter, text):
    box = boxed(tmp_path / "b")
    alter(box)
    with pytest.raises(ArtifactError, match=text) as error:
        Container(box, BOX).json("two")
    assert str(box) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["two", "in/one"])
def test_what_becomes_a_link_to_outside_after_opening_is_refused(box, tmp_path, name):
    opened, kept = Container(box, BOX), (box / name).read_bytes()
    (box / name).rename(tmp_path / "kept")
    (box / name).symlink_to(tmp_path / "kept")
    for read in (opened.path, opened.read):
        with pytest.raises(ArtifactError, match="lies outside the folder"):
            read(name)
    (box / name).unlink()
    (tmp_path / "kept").rename(box / "kept")
    (box / name).symlink_to(box / "kept")
    assert opened.read(name) == kept


def test_links_in_a_circle_are_refused_in_words(box):
    (box / "two").unlink()
    (box / "two").symlink_to("two")
    with pytest.raises(ArtifactError, match=r"two: cannot read it .* Copy the box again\."):
        Container(box, BOX).read("two")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_no_file_can_have_are_refused_when_the_folder_is_opened(box, name):
    resealed(box, lambda m: m["files"].update({name: "0"}))
    with pytest.raises(ArtifactError, match="the manifest is damaged"):
        Container(box, BOX)


def test_a_link_that_leads_outside_is_refused(box):
    (box / "two").unlink()
    (box / "two").symlink_to("/etc/hostname")
    with pytest.raises(ArtifactError, match="lies outside the folder"):
        Container(box, BOX)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.format)
def test_every_kind_refuses_every_other_and_what_is_newer(tmp_path, kind):
    for found, version, text in (
        *((k.format, 1, f"got '{k.format}'") for k in KINDS if k is not kind),
        (kind.format, kind.version + 1, "Upgrade roller"),
    ):
        body = {"format": found, kind.key: version}
        (tmp_path / kind.manifest).write_text(json.dumps({**body, "checksum": checksum(body)}))
        with pytest.raises(ArtifactError, match=re.escape(text)):
            Container(tmp_path, kind)
    with pytest.raises(ArtifactError, match=re.escape(f"expected the folder of {kind.what}, found none. {kind.make}")):
        Container(tmp_path / "none", kind)


def run(out, header, seen):
    return ResumedRun(out, RESULTS, header, lambda row: seen.update({row["n"]: row}), lambda found: found["rows"])


def test_a_run_knows_what_earlier_ones_did(tmp_path):
    out, header, seen = tmp_path / "r.json", {"of": "b"}, {}
    first = run(out, header, seen)
    first.keep({"n": 1})
    first.keep({"n": 2})
    first._journal.close(remove=False)  # killed
    seen.clear()
    second = run(out, header, seen)
    assert set(seen) == {1, 2}
    second.finish({"rows": list(seen.values()), "complete": False})
    assert out.with_name("r.json.journal").exists()
    third = run(out, header, seen)
    third.finish({"rows": list(seen.values()), "complete": True})
    assert not out.with_name("r.json.journal").exists() and RESULTS.read(out)["of"] == "b"
    seen.clear()
    run(out, header, seen)._journal.close(remove=True)
    assert set(seen) == {1, 2}, "a final result is added to"
    with pytest.raises(ArtifactError, match="holds the results of another run"):
        run(out, {"of": "c"}, {})
