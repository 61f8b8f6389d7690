"""Which toolchain builds an artifact: the one of its language."""

from __future__ import annotations

from roller.artifact import KernelArtifact


def build(artifact: KernelArtifact) -> KernelArtifact:
    """Build a GPU artifact with the toolchain of its language; a CPU artifact is built when it is lowered.

    Raises
    ------
    BuildError
        Where the toolchain is missing or refuses.
    """
    if artifact.language == "cuda":
        from roller.backends.cuda import toolchain as cuda_toolchain

        return cuda_toolchain.build(artifact)
    if artifact.language == "hip":
        from roller.backends.rocm import toolchain as rocm_toolchain

        return rocm_toolchain.build(artifact)
    return artifact
