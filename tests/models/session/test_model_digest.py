"""Digests of models: those of ``sha256sum``, and none for a file that has changed."""

from __future__ import annotations

import hashlib
import os

from roller_runtime.session.model_digest import digest_of_model


def test_files_and_bytes_have_the_digest_of_their_content(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"model" * 1000)
    meant = hashlib.sha256(b"model" * 1000).hexdigest()
    assert digest_of_model(path)() == digest_of_model(str(path))() == digest_of_model(b"model" * 1000)() == meant


def test_a_changed_or_missing_file_has_none(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")
    digest = digest_of_model(path)
    os.utime(path, ns=(1, 1))
    assert digest() is None
    assert digest_of_model(tmp_path / "missing")() is None and digest_of_model(tmp_path)() is None
    digest = digest_of_model(path)
    path.unlink()
    assert digest() is None
