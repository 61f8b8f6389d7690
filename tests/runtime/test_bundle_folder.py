"""A bundle's folder appears whole or not at all, whatever stops its writing."""

from __future__ import annotations

import json

import pytest

from roller.errors import ArtifactError
from roller.runtime.bundle_format import MANIFEST, checksum, whole_folder, write_manifest


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError, OSError])
def test_nothing_is_left_of_a_folder_that_was_not_finished(tmp_path, stop):
    with pytest.raises(ArtifactError if stop is OSError else stop), whole_folder(tmp_path / "b") as work:
        (work / "half").write_text("written")
        raise stop
    assert list(tmp_path.iterdir()) == []


def test_a_finished_folder_has_a_manifest_that_says_what_it_holds(tmp_path):
    with whole_folder(tmp_path / "b") as work:
        manifest = write_manifest(work, {"format": "f", "sizes": (1, 2)})
        assert not (tmp_path / "b").exists()
    found = json.loads((tmp_path / "b" / MANIFEST).read_text())
    assert found == manifest == {"format": "f", "sizes": [1, 2], "checksum": checksum({"format": "f", "sizes": [1, 2]})}
    with pytest.raises(ArtifactError), whole_folder(tmp_path / "b"):
        raise AssertionError("a folder that holds something was given out")
