"""Builds kernels with the toolchain of their language."""

from __future__ import annotations

from roller.artifact import KernelArtifact
from roller.targets import target_of_language


def build(artifact: KernelArtifact) -> KernelArtifact:
    """Build a GPU artifact with its toolchain; CPU artifacts are built when they are lowered."""
    return target_of_language(artifact.language, artifact.expression.name).build(artifact)
