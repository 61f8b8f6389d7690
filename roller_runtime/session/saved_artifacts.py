"""Programs, estimates and sources of a saved model's kernels, which calls do not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from roller_runtime.storage.verified_container import Container

#: Maps an artifact's JSON data, and the file's name for messages, to the artifact.
ArtifactReader: TypeAlias = Callable[[Any, str], Any]


def read_as_data(data: Any, where: str) -> Any:
    """Return the JSON data of an artifact: the package roller, which knows their class, may be absent."""
    del where
    return data


def doubt_of_artifact(artifact: Any) -> str:
    """Return the reason why an artifact's measured time is doubtful; empty if there is none."""
    return str(artifact["build"].get("doubt", "") if isinstance(artifact, dict) else artifact.doubt)


class SavedArtifacts(Mapping[str, Any]):
    """Programs, estimates and sources of a saved model's kernels, read on access."""

    def __init__(self, folder: Container, files: Mapping[str, str], read: ArtifactReader = read_as_data) -> None:
        self._folder, self._files, self._read = folder, files, read

    def __getitem__(self, key: str) -> Any:
        """Return an artifact without its binary."""
        file = self._files[key]
        return self._read(self._folder.json(file), str(self._folder.folder / file))

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
