"""Key of a cached kernel: everything that determines the kernel, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import roller_runtime
from roller.artifact import FORMAT_VERSION
from roller.expr import TensorExpr

#: Parts of both packages that determine the kernel for a given expression, spec and options.
_DECIDING = (
    "roller/artifact.py", "roller/backends", "roller/compiler/autotune", "roller/compiler/pipeline.py",
    "roller/construction", "roller/core", "roller/expr", "roller/hardware", "roller/perf", "roller/runtime",
    "roller/targets", "roller/te", "roller/templates", "roller/tile", "roller_runtime/core", "roller_runtime/cpu",
    "roller_runtime/timing",
)  # fmt: skip
#: All of both packages.
ALL_CODE = ("roller", "roller_runtime")


@dataclass(frozen=True)
class CacheKey:
    """Identity of one compilation, made by :meth:`of`; ``text`` is canonical JSON of its parts."""

    text: str

    @classmethod
    def of(
        cls,
        expression: TensorExpr,
        spec_key: str,
        template_version: int,
        options: Mapping[str, Any],
        code: str | None = None,
    ) -> CacheKey:
        """Return the key of a compilation.

        Examples
        --------
        >>> import roller
        >>> flat, cube = (roller.ops.elementwise("relu", s) for s in ((561,), (17, 11, 3)))
        >>> flat.key == cube.key, CacheKey.of(flat, "", 1, {}) == CacheKey.of(cube, "", 1, {})
        (True, False)
        """
        # expression.key is taken on the fused form, which [17, 11, 3] and [561] share although the arguments of their
        # kernels differ; so the arguments' shapes and dtypes are parts of the key as well. Names are not.
        parts = {
            "expression": expression.key,
            "arguments": _argument_shapes_and_dtypes(expression),
            "spec": spec_key,
            "template_version": template_version,
            "options": dict(options),
            "artifact_format": FORMAT_VERSION,
            "code": source_code_digest() if code is None else code,
        }
        return cls(json.dumps(parts, sort_keys=True, separators=(",", ":")))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the parts."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def parts(self) -> dict[str, Any]:
        """The parts by name."""
        found: dict[str, Any] = json.loads(self.text)
        return found

    def fits(self, expression: TensorExpr) -> bool:
        """Return whether the key belongs to this expression."""
        same = self.parts.get("arguments") == _argument_shapes_and_dtypes(expression)
        return same and self.parts.get("expression") == expression.key


@cache
def source_code_digest(parts: tuple[str, ...] = _DECIDING) -> str:
    """Return a digest of roller's own sources: by default, those that determine a kernel."""
    # An edited template or model never serves an old kernel, and a release keeps its kernels; TEMPLATE_VERSION alone
    # would depend on editors who remember to change it. It takes some milliseconds, once per process.
    packages = {"roller": Path(__file__).resolve().parents[1], "roller_runtime": Path(roller_runtime.__file__).parent}
    total = hashlib.sha256()
    for name in parts:
        package, _, inside = name.partition("/")
        part = packages[package] / inside
        for path in [part] if part.suffix else sorted(part.rglob("*.py")):
            if path.parent.name == "runtime" and path.name.startswith("cache"):
                continue  # where kernels are kept changes none
            try:
                file = f"{package}/{path.relative_to(packages[package]).as_posix()}\0"
                total.update(file.encode() + path.read_bytes() + b"\0")
            except OSError:  # installed without sources: only TEMPLATE_VERSION distinguishes releases
                continue
    return total.hexdigest()


def _argument_shapes_and_dtypes(expression: TensorExpr) -> list[list[list[Any]]]:
    """Return shapes and dtypes of the inputs and of the outputs, in call order."""
    groups = (expression.inputs, expression.output_tensors)
    return [[[[int(n) for n in t.shape], t.dtype] for t in group] for group in groups]
