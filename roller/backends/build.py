"""Build kernels with the toolchains of their languages."""

from __future__ import annotations

from roller.artifact import KernelArtifact
from roller.targets import target_of_language


def build(artifact: KernelArtifact) -> KernelArtifact:
    """Build a GPU artifact with the toolchain of its language; a CPU artifact is built when it is lowered."""
    return target_of_language(artifact.language, artifact.expression.name).build(artifact)
