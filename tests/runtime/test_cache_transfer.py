"""Export and import of the cache: what comes out goes in; what was tampered with does not."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import roller
from roller.errors import ArtifactError
from roller.runtime.cache import KernelCache
from roller.runtime.cache_transfer import export_cache, import_cache
from roller_runtime.storage.verified_container import checksum
from tests.offenders import every
from tests.runtime.cache_entries import make_entry, make_key

EXPR = roller.ops.matmul(24, 20, 16)
OTHER = roller.ops.elementwise("relu", (64,))
Members = list[tuple[tarfile.TarInfo, bytes]]


@pytest.fixture
def full(tmp_path: Path) -> KernelCache:
    cache = KernelCache(tmp_path / "full")
    cache.store(make_key(EXPR), make_entry(EXPR, measured_s=1e-3))
    cache.store(make_key(OTHER), make_entry(OTHER))
    return cache


@pytest.mark.parametrize("name", ["kernels.tar", "kernels.tar.gz"])
def test_round_trip(full: KernelCache, tmp_path: Path, name: str) -> None:
    path, empty = tmp_path / name, KernelCache(tmp_path / "empty")
    done = export_cache(full, path)
    assert (done["entries"], done["artifacts"], done["measurements"], done["skipped"]) == (2, 2, 1, 0)
    assert done["bytes"] == path.stat().st_size
    for _ in range(2):  # the second import changes nothing
        assert import_cache(empty, path)["entries"] == 2
        assert empty.load(make_key(EXPR)) == full.load(make_key(EXPR)) == make_entry(EXPR, measured_s=1e-3)
        assert empty.load(make_key(OTHER)) == make_entry(OTHER)
        assert empty.measurements() == full.measurements()
        assert empty.info()["entries"] == 2


def test_import_keeps_what_was_measured_here(full: KernelCache, tmp_path: Path) -> None:
    here, path = KernelCache(tmp_path / "here"), tmp_path / "k.tar"
    here.store(make_key(OTHER), make_entry(OTHER, "mine", 2e-3))
    export_cache(full, path)
    assert import_cache(here, path) == {"entries": 2, "written": 1, "measurements": 1}
    found = here.load(make_key(OTHER))
    assert found is not None
    assert "mine" in found.artifact.source


def test_damaged_entries_are_not_exported(full: KernelCache, tmp_path: Path) -> None:
    row = next(r for r in full.rows() if r.expression == OTHER.name)
    full.files.path(row.artifact).write_bytes(b"{}")
    done = export_cache(full, tmp_path / "k.tar")
    assert (done["entries"], done["skipped"]) == (1, 1)


def rename(members: Members, index: int, name: str) -> None:
    members[index][0].name = name


def replace_data(members: Members, index: int, data: bytes) -> None:
    info, _ = members[index]
    info.size = len(data)
    members[index] = (info, data)


def edit_manifest(members: Members, change: Callable[[dict[str, Any]], None], seal: bool = True) -> None:
    manifest = json.loads(members[0][1])
    change(manifest)
    if seal:
        manifest["checksum"] = checksum({k: v for k, v in manifest.items() if k != "checksum"})
    replace_data(members, 0, json.dumps(manifest).encode())


def link(members: Members) -> None:
    info = tarfile.TarInfo(members[1][0].name)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    members[1] = (info, b"")


def swap_keys(manifest: dict[str, Any]) -> None:
    from roller.runtime.cache_database import Row

    one, two = manifest["entries"]
    for name in ("key", "parts"):
        one[name], two[name] = two[name], one[name]
    for row in (one, two):
        row["checksum"] = Row(**row).sum()


TAMPERED: dict[str, tuple[Callable[[Members], Any], str]] = {
    "relative path": (lambda m: rename(m, 1, "../../evil.json"), "member '../../evil.json' is neither"),
    "absolute path": (lambda m: rename(m, 1, "/tmp/evil.json"), "member '/tmp/evil.json' is neither"),
    "path through": (lambda m: rename(m, 1, "artifacts/../" + m[1][0].name), "is neither the manifest nor"),
    "link": (link, "is no regular file"),
    "artifact bytes": (lambda m: replace_data(m, 1, m[1][1].replace(b"//", b"#/")), "checksum of artifact"),
    "missing artifact": (lambda m: m.pop(), "1 artifacts of the manifest are missing"),
    "second copy": (lambda m: m.append(m[1]), "is not in the manifest, or twice"),
    "no manifest": (lambda m: m.pop(0), "expected manifest.json first"),
    "second manifest": (lambda m: m.append(m[0]), "member 'manifest.json' is neither"),
    "unsealed manifest": (
        lambda m: edit_manifest(m, lambda d: d["entries"].pop(), seal=False), "checksum of the manifest does not match",
    ),
    "row": (lambda m: edit_manifest(m, lambda d: d["entries"][0].update(device="a100")), "checksum of entry"),
    "key": (lambda m: edit_manifest(m, lambda d: d["entries"][0].update(key="0" * 64)), "checksum of entry"),
    "keys swapped": (lambda m: edit_manifest(m, swap_keys), "computes another expression than its key says"),
    "newer": (lambda m: edit_manifest(m, lambda d: d.update(format_version=99)), "Upgrade roller"),
    "malformed": (lambda m: replace_data(m, 0, b"[1, 2]"), "the manifest is malformed"),
    "empty": (lambda m: m.clear(), "it is empty"),
}  # fmt: skip


@every("what", TAMPERED)
def test_tampered_file_is_refused_whole(full: KernelCache, tmp_path: Path, what: str) -> None:
    change, message = TAMPERED[what]
    path, empty = tmp_path / "k.tar", KernelCache(tmp_path / "empty")
    export_cache(full, path)
    with tarfile.open(path) as tar:
        members = [(m, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]
    change(members)
    with tarfile.open(path, "w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    with pytest.raises(ArtifactError) as caught:
        import_cache(empty, path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert not empty.folder.exists(), "nothing is stored before all is verified"


@every("keep", [0.0, 0.3, 0.9])
@every("name", ["k.tar", "k.tar.gz"])
def test_truncated_file_is_refused(full: KernelCache, tmp_path: Path, keep: float, name: str) -> None:
    path = tmp_path / name
    export_cache(full, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * (keep if name.endswith("gz") else keep / 3))])
    with pytest.raises(ArtifactError, match=name):
        import_cache(KernelCache(tmp_path / "empty"), path)
    assert not (tmp_path / "empty").exists()


def test_unwritable_paths_are_one_clear_error(full: KernelCache, tmp_path: Path) -> None:
    export_cache(full, tmp_path / "k.tar")
    with pytest.raises(ArtifactError, match="cannot export the cache"):
        export_cache(full, tmp_path / "no" / "k.tar")
    with pytest.raises(ArtifactError, match="cannot import"):
        import_cache(KernelCache(tmp_path / "k.tar" / "cache"), tmp_path / "k.tar")
    with pytest.raises(ArtifactError, match="cannot import"):
        import_cache(full, tmp_path / "absent.tar")
