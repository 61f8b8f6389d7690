"""Cache entries without a compilation: real programs, an artifact of one line."""

from __future__ import annotations

from dataclasses import replace

import roller
from roller.artifact import KernelArtifact, Launch
from roller.expr import TensorExpr
from roller.runtime.cache import CachedCandidate, CacheEntry, CacheKey
from roller_runtime.core.kernel_argument import Argument


def make_entry(expr: TensorExpr, text: str = "", measured_s: float | None = None) -> CacheEntry:
    """Return an entry for a V100 whose source carries ``text``."""
    found = roller.construct(expr, device="v100", top_k=3)
    arguments = tuple(
        Argument(t.name, role, t.shape, t.dtype)
        for role, tensors in (("input", expr.inputs), ("output", expr.output_tensors))
        for t in tensors
    )
    artifact = KernelArtifact(
        "cuda",
        {"arch": "sm_70"},
        "v100",
        expr,
        found[0].program,
        (Launch(f"// {text}", "kernel", tuple(a.name for a in arguments)),),
        arguments,
        found[0].estimate.to_dict(),
        measured_s=measured_s,
    )
    candidates = [CachedCandidate(c.id, c.program, c.estimate.to_dict(), "built") for c in found]
    if measured_s is not None:
        candidates[0] = replace(candidates[0], status="measured", measured_s=measured_s)
        candidates[1] = replace(candidates[1], status="wrong", reason="planted")
    return CacheEntry(artifact, tuple(candidates))


def make_key(expr: TensorExpr, label: str = "") -> CacheKey:
    """Return a key of the expression; another one per label."""
    return CacheKey.of(expr, "spec", 1, {"label": label}, "code")
