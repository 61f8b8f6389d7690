"""Draw the second picture of the README: what a training step costs by line, and its memory by kind, both predicted.

``python docs/profile_picture.py [PROFILE.json]`` (extras ``bench`` and ``insight``, for matplotlib and PyTorch) writes
``docs/images/profile-light.svg`` and ``profile-dark.svg`` from a profile that ``roller profile --out`` wrote; without
one, from that of ``examples/training/resnet50.py``, which it computes. Each names the digest of what it was drawn from;
a test computes the profile again and compares, so that no picture outlives its numbers.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from roller.insight.step_profile.node import Node
    from roller.insight.step_profile.step_profile import StepProfile

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
ENTRY, DEVICE = "examples/training/resnet50.py", "rtx3090"
#: Share of the step or of its memory from which on a line or a kind is drawn by itself.
DRAWN = 0.01
MIB = 1024**2
OTHER = "all else"


@dataclass(frozen=True)
class Palette:
    """Colours on one background; the picture itself has none."""

    name: str
    text: str
    grid: str
    forward: str
    backward: str
    optimizer: str
    kinds: tuple[str, ...]


PALETTES = (
    Palette("light", "#24292f", "#d0d7de", "#54aeff", "#0969da", "#bc4c00",
            ("#0969da", "#8c959f", "#bc4c00", "#8250df", "#1a7f37", "#bf8700")),
    Palette("dark", "#e6edf3", "#30363d", "#79c0ff", "#1f6feb", "#f0883e",
            ("#1f6feb", "#6e7681", "#f0883e", "#a371f7", "#3fb950", "#d29922")),
)  # fmt: skip


@dataclass(frozen=True)
class Costs:
    """What is drawn, rounded as it is shown."""

    title: str
    #: Text of a line of code -> milliseconds by phase. Each instant belongs to the innermost line.
    lines: dict[str, dict[str, float]]
    #: Kind -> MiB at the total's peak.
    memory: dict[str, int]

    @property
    def digest(self) -> str:
        """What tells whether the picture is that of these costs."""
        return hashlib.sha256(json.dumps([self.title, self.lines, self.memory]).encode()).hexdigest()


def costs(profile: StepProfile) -> Costs:
    """Return what is drawn of a profile."""
    by_line: dict[str, dict[str, float]] = {}
    _add(profile.root, "", by_line)
    whole = profile.iteration_s
    large = {n: phases for n, phases in by_line.items() if n and sum(phases.values()) >= DRAWN * whole}
    rest: dict[str, float] = {}
    for name, phases in by_line.items():
        for phase, took in phases.items():
            rest[phase] = rest.get(phase, 0.0) + (0.0 if name in large else took)
    order = sorted(large, key=lambda name: -sum(large[name].values()))
    kinds = dict(profile.memory_parts)
    shown = sorted((k for k in kinds if kinds[k] >= DRAWN * profile.total_bytes), key=lambda k: -kinds[k])
    memory = {kind.replace("_", " "): round(kinds[kind] / MIB) for kind in shown}
    return Costs(
        f"{profile.name}, batch {profile.batch}, {profile.device}: {profile.source} {1e3 * whole:.1f} ms a step, "
        f"{profile.throughput:.0f} samples/s, {profile.total_bytes / MIB:.0f} MiB",
        {_text(n): _milliseconds(large[n]) for n in order} | {OTHER: _milliseconds(rest)},
        memory | {OTHER: round((profile.total_bytes - sum(kinds[k] for k in shown)) / MIB)},
    )


def _add(node: Node, line: str, by_line: dict[str, dict[str, float]]) -> None:
    """Add the time of the leaves within a node to the innermost line around each."""
    line = node.name if node.kind == "line" else line
    if not node.children:
        phases = by_line.setdefault(line, {})
        for phase, part in node.seconds.items():
            phases[phase] = phases.get(phase, 0.0) + part.wall_s
    for child in node.children:
        _add(child, line, by_line)


def _milliseconds(phases: dict[str, float]) -> dict[str, float]:
    return {phase: round(1e3 * took, 2) for phase, took in sorted(phases.items()) if took >= 5e-6}


def _text(name: str) -> str:
    """Return ``"42  y = ..."`` of ``"file:42"``."""
    file, _, number = name.rpartition(":")
    return f"{number}  {(ROOT / file).read_text(encoding='utf-8').splitlines()[int(number) - 1].strip()}"


def draw(found: Costs, palette: Palette, path: Path) -> None:
    """Write the picture in the colours of one background."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    settings = {
        "svg.fonttype": "none", "svg.hashsalt": "roller", "font.family": "sans-serif", "font.size": 9,
        "text.color": palette.text, "axes.labelcolor": palette.text, "xtick.color": palette.text,
        "ytick.color": palette.text, "axes.edgecolor": palette.grid,
    }  # fmt: skip
    with plt.rc_context(settings):
        figure, (upper, lower) = plt.subplots(
            2, 1, figsize=(9.6, 3.9), height_ratios=(len(found.lines), 1.4), layout="constrained"
        )
        figure.suptitle(found.title, x=0.01, ha="left", fontsize=10)
        _lines(upper, found, palette)
        _memory(lower, found, palette)
        for axes in (upper, lower):
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(length=0)
            axes.set_axisbelow(True)
            axes.grid(axis="x", color=palette.grid, linewidth=0.6)
        figure.savefig(path, transparent=True, metadata={"Date": None, "Description": f"drawn from {found.digest}"})
        plt.close(figure)
    # No trailing blanks: matplotlib writes them, and version control would complain.
    lines = [line.rstrip() for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _lines(axes: Axes, found: Costs, palette: Palette) -> None:
    names = list(found.lines)
    whole = sum(sum(phases.values()) for phases in found.lines.values())
    left = [0.0] * len(names)
    for phase, colour in (
        ("forward", palette.forward), ("backward", palette.backward), ("optimizer", palette.optimizer)
    ):  # fmt: skip
        widths = [found.lines[name].get(phase, 0.0) for name in names]
        axes.barh(range(len(names)), widths, left=left, color=colour, height=0.7, label=phase)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for y, took in enumerate(left):
        axes.text(took + 0.3, y, f"{took:.1f} ms, {100 * took / whole:.0f} %", va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names, family="monospace", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(left))
    axes.set_xlabel("predicted milliseconds of a step, by line")
    axes.legend(loc="lower right", frameon=False, fontsize=8)


def _memory(axes: Axes, found: Costs, palette: Palette) -> None:
    left = 0
    for (kind, size), colour in zip(found.memory.items(), palette.kinds, strict=False):
        axes.barh(0, size, left=left, color=colour, height=0.7, label=f"{kind} {size}")
        left += size
    axes.set_yticks([])
    axes.set_ylim(-0.5, 0.5)
    axes.set_xlim(0, left)
    axes.set_xlabel("predicted MiB at the peak, by kind")
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 0.95), frameon=False, fontsize=8, ncols=len(found.memory),
        columnspacing=1.2, handlelength=1, borderaxespad=0,
    )  # fmt: skip


def main(words: list[str]) -> None:
    """Write the pictures."""
    import roller

    found = costs(roller.load_profile(words[0]) if words else roller.profile(ROOT / ENTRY, DEVICE))
    IMAGES.mkdir(exist_ok=True)
    for palette in PALETTES:
        path = IMAGES / f"profile-{palette.name}.svg"
        draw(found, palette, path)
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
