"""What the measured ratios must reach, class by class; ratios are the peer's time divided by ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.common import Verdict
from benchmarks.gpu.statistic import geometric_mean, top_share

Operator = Mapping[str, Any]
#: Name, limit, peer, and which operators: the geometric mean of their ratios is at least the limit.
_MEANS: tuple[tuple[str, float, str, Callable[[Operator], bool]], ...] = (
    ("fp32 matmul M3-M5", 0.95, "torch", lambda o: o["id"] in ("M3", "M4", "M5")),
    ("fp16 matmul, tensor cores", 0.60, "torch", lambda o: "tensorcore" in o["sets"]),
    ("1x1 conv fp32", 1.0, "torch", lambda o: _conv(o) and _window(o) == 1),
    ("other conv fp32", 0.85, "torch", lambda o: _conv(o) and _window(o) > 1),
    ("depthwise", 1.5, "torch", lambda o: o["row"]["op"] == "depthwise_conv2d" and "all 119" in o["sets"]),
    ("pooling", 1.3, "torch", lambda o: o["row"]["op"] == "pooling"),
    ("element-wise and reduction", 0.99, "torch", lambda o: o["row"]["op"] in ("elementwise", "reduce")),
    ("softmax and norms", 1.0, "torch.compile", lambda o: "rows" in o["sets"]),
    ("small: M1, M2, LSTM", 1.0, "torch", lambda o: o["id"] in ("M1", "M2", "LSTM_MM")),
    ("all 119", 1.05, "torch", lambda o: "all 119" in o["sets"]),
)
#: Share of the 119 whose ratio is at least the second number.
_SHARES = ((0.65, 0.99), (0.85, 0.90))
#: The first prediction against the best of all candidates, geometric mean.
_TOP_SHARE = 0.90


def _conv(operator: Operator) -> bool:
    return operator["row"]["op"] == "conv2d" and "all 119" in operator["sets"]


def _window(operator: Operator) -> int:
    return int(operator["row"]["KH"] * operator["row"]["KW"])


def ratios(operators: Sequence[Operator], peer: str) -> list[float]:
    """Return the ratios against one peer of the operators it was timed on."""
    return [float(p["ratio"]) for o in operators for p in o["peers"] if p["name"] == peer and p["status"] == "measured"]


def verdicts(operators: Sequence[Operator]) -> list[Verdict]:
    """Return every limit with what was measured; nothing measured is neither held nor missed."""
    out = []
    for name, limit, peer, wanted in _MEANS:
        members = [o for o in operators if wanted(o)]
        found = ratios(members, peer)
        value = geometric_mean(found) if found else None
        text = f"{value:.2f} over {len(found)} of {len(members)}" if value else f"none of {len(members)}"
        out.append(Verdict(f"{name} against {peer}", f">= {limit:g}", text, value >= limit if value else None))
    everything = ratios([o for o in operators if "all 119" in o["sets"]], "torch")
    for share, least in _SHARES:
        held = sum(r >= least for r in everything) / len(everything) if everything else None
        text = f"{100 * held:.0f} % of {len(everything)}" if held is not None else "none"
        name = f"ratio of at least {least:g} among the 119"
        out.append(Verdict(name, f">= {100 * share:.0f} %", text, held >= share if held is not None else None))
    tops = [x for x in map(top_share, (o for o in operators if o["candidates"])) if x is not None]
    top = geometric_mean(tops) if tops else None
    text = f"{top:.3f} over {len(tops)}" if top else "none"
    held_top = top >= _TOP_SHARE if top else None
    out.append(Verdict("first prediction against the best", f">= {_TOP_SHARE}", text, held_top))
    return out
