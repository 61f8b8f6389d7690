"""Which toolchain builds an artifact: the one of its language."""

from __future__ import annotations

from collections.abc import Mapping

from roller.artifact import KernelArtifact
from roller.packed import PackedKernel


def build_packed(packed: PackedKernel) -> PackedKernel:
    """Build a packed kernel with the toolchain of its language.

    Raises
    ------
    BuildError
        Where the toolchain is missing or refuses.
    """
    arch = str(packed.target["arch"])
    if packed.language == "cuda":
        from roller.backends.cuda import toolchain as cuda_toolchain

        binary, log = cuda_toolchain.compile_source(packed.source, arch)
        return packed.with_binary(binary, **cuda_toolchain.resources(log))
    from roller.backends.rocm import toolchain as rocm_toolchain

    binary, log = rocm_toolchain.compile_source(packed.source, arch)
    return packed.with_binary(binary, **rocm_toolchain.resources(log))


def built_packs(packs: Mapping[str, PackedKernel]) -> dict[str, PackedKernel]:
    """Return packed kernels built, each once however many keys it has."""
    distinct = {id(p): p for p in packs.values()}
    images = {n: p if p.binary is not None else build_packed(p) for n, p in distinct.items()}
    return {key: images[id(p)] for key, p in packs.items()}


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
