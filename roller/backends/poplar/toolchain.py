"""Toolchain for codelets, which always raises an error: roller does not drive Poplar's compiler ``popc``."""

from __future__ import annotations

from typing import Never

from roller.artifact import KernelArtifact
from roller.errors import BuildError
from roller.targets import LANGUAGES, check_language

#: Reason why kernels exist only as source.
SOURCE_ONLY = LANGUAGES["poplar"].source_only


def available() -> str:
    """Return the reason why kernels cannot be built here."""
    return SOURCE_ONLY


def build(artifact: KernelArtifact) -> KernelArtifact:
    """Raise an error, because there is no compiler."""
    check_language(artifact.language, ("poplar",), "Poplar build", BuildError, "Build it with its own target.")
    return _refuse()


def compile_source(source: str, arch: str) -> bytes:
    """Raise an error, because there is no compiler."""
    del source, arch
    return _refuse()


def resources(image: bytes) -> dict[str, int]:
    """Raise an error, because there is no compiler."""
    del image
    return _refuse()


def _refuse() -> Never:
    raise BuildError(
        f"Poplar build: expected Graphcore's popc, got none: {SOURCE_ONLY}. Give the source to the Poplar SDK, or run "
        "it on the emulator (--prove)."
    )
