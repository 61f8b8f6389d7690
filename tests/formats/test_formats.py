"""Files of every format a release wrote: this version reads them, or says in one sentence what to do."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import roller
from roller import artifact as artifact_module
from roller.artifact import KernelArtifact
from roller.errors import ArtifactError
from roller.model import gpu_bundle, saved
from roller.model.gpu_bundle import ModelBundle
from roller.runtime import bundle_format, cache_transfer
from roller.runtime.bundle_format import Bundle
from roller.runtime.cache import KernelCache
from roller.runtime.cache_transfer import export_cache, import_cache
from tests.formats.make import EXPR, FILES, WEIGHTS

KERNELS = ("kernel-1.json", "kernel-2.json", "kernel-3.roller")


def one_sentence(error: BaseException) -> bool:
    """Whether a message is one line that ends with a remedy."""
    return "\n" not in str(error) and bool(re.search(r"\. [A-Z][^.]*\.$", str(error).replace(".json", "")))


def test_every_format_has_its_file():
    """Whoever raises a number runs ``python -m tests.formats.make`` with the new one added."""
    names = {p.name.split(".")[0] for p in FILES.iterdir()}
    for stem, version in (
        ("kernel", artifact_module.FORMAT_VERSION), ("cache", cache_transfer.FORMAT_VERSION),
        ("bundle", bundle_format.VERSION), ("model-bundle", gpu_bundle.VERSION),
    ):  # fmt: skip
        assert {f"{stem}-{n}" for n in range(1, version + 1)} <= names, f"{stem}: add the file of the new format"
    assert saved.VERSION == 2, "say in these tests what becomes of the earlier format"


@pytest.mark.parametrize("name", KERNELS)
def test_saved_kernels_of_every_format_are_read(name):
    kernel = roller.load(FILES / name)
    assert kernel.artifact.expression == EXPR and kernel.artifact.device == "v100"
    assert "matmul" in kernel.source and kernel.estimate.seconds > 0
    values = [np.frombuffer(c.values, np.float32) for c in kernel.artifact.constants]
    assert len(values) == (name != "kernel-1.json")
    assert all((v == WEIGHTS.ravel()).all() for v in values)


def test_a_kernel_of_an_earlier_format_is_saved_in_the_present_one(tmp_path):
    old = KernelArtifact.load(FILES / "kernel-2.json")
    new = old.save(tmp_path / "kernel.roller")
    data = new.read_bytes()
    assert data.startswith(b"roller kernel\n") and WEIGHTS.tobytes() in data, "constants are bytes, not text"
    assert KernelArtifact.load(new) == old == KernelArtifact.load(FILES / "kernel-3.roller")
    # What has no constants is written as the first format, which every version reads.
    plain = KernelArtifact.load(FILES / "kernel-1.json").save(tmp_path / "plain.json")
    assert json.loads(plain.read_text())["format_version"] == 1


def damages():
    data = (FILES / "kernel-3.roller").read_bytes()
    at = data.index(WEIGHTS.tobytes()[4:])
    yield "a flipped bit of a constant", data[:at] + b"\x01" + data[at + 1 :]
    yield "a constant cut off", data[: at + 8]
    yield "a text cut off", data[:300]
    yield "no length", b"roller kernel\n"
    yield "an endless text", b"roller kernel\n" + b"\xff" * 8 + data[22:]
    yield "another text", data.replace(b'"v100"', b'"h200"')
    yield "a later format", data.replace(b'"format_version": 3', b'"format_version": 4')
    yield "no text at all", b"roller kernel\n" + (4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc"


@pytest.mark.parametrize(("what", "data"), list(damages()), ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_wrong_with_a_kernels_file_is_one_sentence(tmp_path, what, data):
    path = tmp_path / "kernel.roller"
    path.write_bytes(data)
    with pytest.raises(ArtifactError) as error:
        roller.load(path)
    assert str(path) in str(error.value) and one_sentence(error.value), str(error.value)
    assert ("Upgrade roller" in str(error.value)) == (what == "a later format")


def test_kernels_of_an_exported_cache_are_read(tmp_path):
    cache = KernelCache(tmp_path / "cache")
    assert import_cache(cache, FILES / "cache-1.tar.gz")["written"] >= 1
    assert cache.info()["entries"] >= 1
    assert export_cache(cache, tmp_path / "again.tar.gz")["entries"] == cache.info()["entries"]


def test_bundles_of_kernels_and_of_models_are_read():
    bundle = Bundle(FILES / "bundle-1")
    assert bundle.manifest["version"] == 1 and bundle.manifest["operators"][0]["id"] == "M"
    for version in (1, 2):
        model = ModelBundle(FILES / f"model-bundle-{version}")
        assert model.device == "v100" and model.manifest["version"] == version


@pytest.mark.parametrize(("name", "read"), [("bundle-1", Bundle), ("model-bundle-1", ModelBundle)])
def test_bundles_of_later_formats_say_what_to_do(tmp_path, name, read):
    body = json.loads((FILES / name / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**body, "version": 99}))
    with pytest.raises((ArtifactError, roller.RollerError), match="99") as error:
        read(tmp_path)
    assert "\n" not in str(error.value) and "roller" in str(error.value)


@pytest.mark.parametrize(("version", "remedy"), [(1, "Save the model again with this roller."), (3, "Upgrade roller")])
def test_models_saved_by_another_version_say_what_to_do(tmp_path, version, remedy):
    (tmp_path / "model.json").write_text(json.dumps({"format": saved.FORMAT, "format_version": version}))
    with pytest.raises(ArtifactError, match=remedy) as error:
        roller.load_model(tmp_path)
    assert one_sentence(error.value)
