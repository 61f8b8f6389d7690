"""Artifacts: round trip, and one clear error for each way a file can be wrong."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

import roller
from roller.artifact import FORMAT_VERSION, KernelArtifact, Launch
from roller.errors import ArtifactError
from roller_runtime.core.kernel_argument import Argument
from tests.offenders import every


@pytest.fixture(scope="module")
def artifact() -> KernelArtifact:
    expr = roller.ops.conv2d(2, 3, 7, 7, 4, 3, 3, padding=1, epilogue=("bias", "relu"))
    best = roller.construct(expr, device="v100", top_k=1)[0]
    launch = Launch("__global__ void k() {}", "k", ("X", "W", "Y"), (3, 1, 1), (64, 1, 1), 128)
    arguments = tuple(Argument(t.name, "input", t.shape, t.dtype) for t in expr.inputs)
    return KernelArtifact(
        "cuda", {"arch": "sm_70"}, "v100", expr, best.program, (launch,), arguments, best.estimate.to_dict()
    ).with_binary(b"\x00\x01cubin", registers=32)


def test_round_trip(artifact: KernelArtifact, tmp_path: Path) -> None:
    again = KernelArtifact.load(artifact.save(tmp_path / "a.json"))
    assert again == artifact
    assert again.program.digest == artifact.program.digest
    assert again.expression.key == artifact.expression.key
    assert again.binary == b"\x00\x01cubin"


@every(
    ("damage", "says"),
    [
        (lambda d: {**d, "format_version": FORMAT_VERSION + 1}, "Upgrade roller"),
        (lambda d: {**d, "device": "h200"}, "checksum does not match"),
        (lambda d: {k: v for k, v in d.items() if k != "launches"}, "checksum does not match"),
        (lambda d: {"hello": 1}, "no format_version"),
        (lambda d: [1, 2], "no format_version"),
    ],
)
def test_damaged_files_are_refused(artifact: KernelArtifact, tmp_path: Path, damage: object, says: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(damage(artifact.to_dict())))  # type: ignore[operator]
    with pytest.raises(ArtifactError, match=says) as info:
        KernelArtifact.load(path)
    assert str(path) in str(info.value)


def test_truncated_and_missing_files(artifact: KernelArtifact, tmp_path: Path) -> None:
    path = artifact.save(tmp_path / "a.json")
    path.write_text(path.read_text()[:100])
    with pytest.raises(ArtifactError, match="not valid JSON"):
        KernelArtifact.load(path)
    with pytest.raises(ArtifactError, match="cannot read"):
        roller.load(tmp_path / "nothing.json")


def test_unwritable_path_leaves_nothing(artifact: KernelArtifact, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot write"):
        artifact.save(tmp_path / "no" / "such" / "folder.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(ArtifactError, match="cannot write"):
        artifact.save(tmp_path / "taken")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_unserialisable_content_leaves_nothing(artifact: KernelArtifact, tmp_path: Path) -> None:
    broken = replace(artifact, build={"log": object()})
    with pytest.raises(TypeError):
        broken.save(tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_a_saved_file_has_the_permissions_of_any_other(artifact: KernelArtifact, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    saved = artifact.save(tmp_path / "kernel.json")
    assert stat.S_IMODE(saved.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kernel.json", "other.json"]
