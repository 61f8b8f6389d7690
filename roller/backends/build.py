"""Build kernels with the toolchains of their languages."""

from __future__ import annotations

from collections.abc import Mapping

from roller.artifact import KernelArtifact
from roller.horizontal import HorizontalKernel
from roller.targets import target_of_language


def build_packed(packed: HorizontalKernel) -> HorizontalKernel:
    """Build a packed kernel with the toolchain of its language."""
    tools = target_of_language(packed.language, packed.stages[0].entry).tools()
    binary, log = tools.compile_source(packed.source, str(packed.target["arch"]))
    return packed.with_binary(binary, **tools.resources(log))


def built_packs(packs: Mapping[str, HorizontalKernel]) -> dict[str, HorizontalKernel]:
    """Return packed kernels built, each once however many keys it has."""
    distinct = {id(p): p for p in packs.values()}
    images = {n: p if p.binary is not None else build_packed(p) for n, p in distinct.items()}
    return {key: images[id(p)] for key, p in packs.items()}


def build(artifact: KernelArtifact) -> KernelArtifact:
    """Build a GPU artifact with the toolchain of its language; a CPU artifact is built when it is lowered."""
    return target_of_language(artifact.language, artifact.expression.name).build(artifact)
