"""Programs, estimates and sources of a saved model's kernels, which calls do not need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from roller.runtime.verified_container import Container

if TYPE_CHECKING:
    from roller.artifact import KernelArtifact


class SavedArtifacts(Mapping[str, "KernelArtifact"]):
    """Programs, estimates and sources of a saved model's kernels, read on access."""

    def __init__(self, folder: Container, files: Mapping[str, str]) -> None:
        self._folder, self._files = folder, files

    def __getitem__(self, key: str) -> KernelArtifact:
        """Return an artifact without its binary."""
        from roller.artifact import KernelArtifact

        file = self._files[key]
        return KernelArtifact.from_dict(self._folder.json(file), str(self._folder.folder / file))

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
