"""The page of an audit: counts, and what becomes of every operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.torch_audit.samples import DTYPES

#: Characters of a reason in the table.
_WIDTH = 110


def page(state: Mapping[str, Any]) -> str:
    """Return the page of a state.

    Parameters
    ----------
    state
        As ``benchmarks.torch_audit`` writes it.
    """
    verdicts = {tuple(k.rsplit(" ", 1)): v for k, v in state["verdicts"].items()}
    dtypes = [d for d in DTYPES if any(k[1] == d for k in verdicts)]
    names = sorted({k[0] for k in verdicts})
    everything = {k: _flat(v) for k, v in verdicts.items()}
    differing = sum(len(v["differs"]) for v in everything.values())
    tried, samples = (sum(v[k] for v in everything.values()) for k in ("tried", "samples"))
    compiled = [v["compiled"] for v in everything.values() if v["compiled"]]
    unlike = [c for c in compiled if c != "agrees"]
    lines = [
        "# Operators of PyTorch",
        "",
        f"PyTorch {state['torch']} has {len(state['operators'])} entries in its own database of operators (OpInfo). "
        f"{len(names)} of them were audited: {tried} samples of {samples}, at most {state['most']} per operator and "
        "dtype. Each was exported as the backend does it, evaluated by the definition of its kernels, and compared "
        f"with PyTorch, with float64 as the judge. **{differing} samples differ.** "
        f"{_of_compiled(len(compiled), len(unlike))}",
        "",
        "Samples with complex, bfloat16, sparse or quantised tensors, and graphs that write into their arguments, draw "
        "random numbers or need gradients, are left to PyTorch for that reason alone. What is left to PyTorch runs "
        "there, with a warning that gives the reason.",
        "",
        "| dtype | operators | taken | taken in part | left to PyTorch | not finished | samples taken | differ |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for dtype in dtypes:
        of = [v for (_, d), v in everything.items() if d == dtype]
        kinds = [_kind(v) for v in of]
        counts = [len(of), *(kinds.count(k) for k in ("taken", "in part", "left", "not finished"))]
        counts += [sum(v["taken"] for v in of), sum(len(v["differs"]) for v in of)]
        lines.append(f"| {dtype} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", "| operator | taken | left to PyTorch, or different |", "|---|---|---|"]
    lines += [_row(name, {d: everything[name, d] for d in dtypes if (name, d) in everything}) for name in names]
    missing = sorted(set(state["operators"]) - set(names))
    if missing:
        lines += ["", f"Not audited yet, {len(missing)}: " + ", ".join(f"`{n}`" for n in missing) + "."]
    return "\n".join(lines) + "\n"


def _flat(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return a verdict with all its parts; one that was begun and never written has few."""
    empty: dict[str, Any] = {
        "samples": 0, "tried": 0, "taken": 0, "left": {}, "differs": {}, "compiled": "", "note": ""
    }  # fmt: skip
    return {**empty, **verdict}


def _of_compiled(count: int, unlike: int) -> str:
    if not count:
        return "None was compiled in this run."
    return f"Of {count} operators and dtypes one sample was compiled and called, too: {unlike} differ."


def _kind(verdict: Mapping[str, Any]) -> str:
    if verdict["taken"]:
        return "in part" if verdict["left"] else "taken"
    return "left" if verdict["left"] else "not finished"


def _row(name: str, of: Mapping[str, Mapping[str, Any]]) -> str:
    taken = ", ".join(f"{d} {v['taken']}/{v['tried']}" for d, v in of.items() if v["taken"])
    reasons: dict[str, list[str]] = {}
    for dtype, v in of.items():
        for number, how in v["differs"].items():
            reasons.setdefault(f"**differs** (sample {number}): {how}", []).append(dtype)
        for reason in v["left"]:
            reasons.setdefault(reason, []).append(dtype)
        if v["note"]:
            reasons.setdefault(v["note"], []).append(dtype)
    words = "; ".join(f"{', '.join(d)}: {_plain(r)}" for r, d in reasons.items())
    return f"| `{name}` | {taken} | {words} |"


def _plain(reason: str) -> str:
    """Return a reason for a cell of a table."""
    text = (
        " ".join(reason.split())
        .replace("|", "/")
        .replace("<", "‹")
        .replace(">", "›")
        .replace("[", "(")
        .replace("]", ")")
    )
    text = text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
    return text.replace("_", r"\_").replace("*", r"\*") if "**differs**" not in text else text
