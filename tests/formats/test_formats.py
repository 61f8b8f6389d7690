"""Files of every format a release wrote: this version reads them, or says in one sentence what to do."""

from __future__ import annotations

import json
import platform
import re
import sys

import numpy as np
import pytest

import roller
from roller import artifact as artifact_module
from roller.artifact import KernelArtifact
from roller.errors import ArtifactError
from roller.models.session.gpu_bundle import ModelBundle
from roller.runtime import cache_transfer, container_kinds
from roller.runtime.bundle_format import Bundle
from roller.runtime.cache import KernelCache
from roller.runtime.cache_transfer import export_cache, import_cache
from roller.runtime.probe_bundle import ProbeBundle
from roller_runtime.core.processor_features_and_count import missing_features
from roller_runtime.storage import verified_container
from tests.formats.make import EXPR, FILES, WEIGHTS
from tests.offenders import every

CONTAINERS = {
    "bundle": container_kinds.BUNDLE, "probes": container_kinds.PROBES, "model-bundle": container_kinds.MODEL_BUNDLE,
    "model": verified_container.SAVED,
}  # fmt: skip
KERNELS = ("kernel-1.json", "kernel-2.json", "kernel-3.roller")


def one_sentence(error: BaseException) -> bool:
    """Whether a message is one line that ends with a remedy."""
    return "\n" not in str(error) and bool(re.search(r"\. [A-Z][^.]*\.$", str(error).replace(".json", "")))


def test_every_format_has_its_file():
    """Whoever raises a number runs ``python -m tests.formats.make`` with the new one added."""
    names = {p.name.split(".")[0] for p in FILES.iterdir()}
    for stem, version in (
        ("kernel", artifact_module.FORMAT_VERSION), ("cache", cache_transfer.FORMAT_VERSION),
        *((stem, kind.version) for stem, kind in CONTAINERS.items()),
    ):  # fmt: skip
        oldest = CONTAINERS[stem].oldest if stem in CONTAINERS else 1
        assert {f"{stem}-{n}" for n in range(oldest, version + 1)} <= names, f"{stem}: add the file of the new format"
    assert verified_container.SAVED.oldest == 2, "say in these tests what becomes of the earlier format"


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


@every(("what", "data"), list(damages()), ids=lambda x: x if isinstance(x, str) else "")
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
    assert bundle.load(bundle.operators[0])[0][1].device == "v100"
    model = ModelBundle(FILES / "model-bundle-1")
    assert model.device == "v100" and model.manifest["version"] == 1
    assert model.plan().program.steps and model.artifacts()
    probes = ProbeBundle(FILES / "probes-1")
    assert probes.device == "k80" and probes.names == ["latency", "control"]
    assert all(probes.plan(n).cases and probes.image(probes.plan(n), build=False) for n in probes.names)


def test_bundles_with_packs_say_what_to_do():
    """Version 2 held several kernels in one launch; the plan without them, which lies beside, is not taken silently."""
    assert ModelBundle(FILES / "model-bundle-2").manifest["version"] == 2
    with pytest.raises(ArtifactError, match=r"several kernels in one launch.*Compile the model again\.$") as error:
        roller.load_model(FILES / "model-bundle-2", device="emulated")
    assert str(FILES / "model-bundle-2" / "plan.json") in str(error.value) and one_sentence(error.value)


@pytest.mark.parametrize("name", ["model-2", "model-3"])
def test_saved_models_are_read(name):
    """Those of Haswell's instructions, with the native runner of their day; the second one is for 1 to 8 rows."""
    body = json.loads((FILES / name / "model.json").read_text())
    if body["machine"] != [sys.platform, platform.machine()] or missing_features(body["features"]):
        with pytest.raises(ArtifactError, match="Compile the model"):
            roller.load_model(FILES / name)
        return
    session = roller.load_model(FILES / name)
    for rows in (8,) if name == "model-2" else range(1, 9):
        x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
        np.testing.assert_array_equal(session.run(x), x @ WEIGHTS)
    if name == "model-2":
        assert [a.device for a in session.artifacts.values()] == ["cpu-avx2"]


@pytest.mark.parametrize(
    ("name", "read"), [("bundle-1", Bundle), ("model-bundle-1", ModelBundle), ("probes-1", ProbeBundle)]
)
def test_bundles_of_later_formats_say_what_to_do(tmp_path, name, read):
    body = json.loads((FILES / name / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**body, "version": 99}))
    with pytest.raises((ArtifactError, roller.RollerError), match="99") as error:
        read(tmp_path)
    assert "\n" not in str(error.value) and "roller" in str(error.value)


@pytest.mark.parametrize(("version", "remedy"), [(1, "Save the model again with this roller."), (4, "Upgrade roller")])
def test_models_saved_by_another_version_say_what_to_do(tmp_path, version, remedy):
    (tmp_path / "model.json").write_text(
        json.dumps({"format": verified_container.SAVED.format, "format_version": version})
    )
    with pytest.raises(ArtifactError, match=remedy) as error:
        roller.load_model(tmp_path)
    assert one_sentence(error.value)
