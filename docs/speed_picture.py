"""Draw the picture of the README: speed against libraries, predicted and measured, from the committed results.

``python docs/speed_picture.py`` (extra ``bench``, for matplotlib) writes ``docs/images/speed-light.svg`` and
``speed-dark.svg`` from ``benchmarks/results/onnx.json`` and ``cpu.json``. Each names the digest of what it was drawn
from; a test holds that to the files, so that no picture outlives its numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
CLASSES = ("matmul", "conv", "depthwise", "pooling", "element-wise", "reduction")


@dataclass(frozen=True)
class Palette:
    """Colours on one background; the picture itself has none."""

    name: str
    text: str
    grid: str
    measured: str
    other: str
    predicted: str


PALETTES = (
    Palette("light", "#24292f", "#d0d7de", "#0969da", "#54aeff", "#bc4c00"),
    Palette("dark", "#e6edf3", "#30363d", "#58a6ff", "#1f6feb", "#f0883e"),
)


@dataclass(frozen=True)
class Speeds:
    """What is drawn; a speed is another's time over Roller's, above 1 Roller is faster."""

    #: Network -> batch -> measured speed against ONNX Runtime.
    networks: dict[str, dict[int, float]]
    #: Class of operators -> measured speeds against the best library, and what the model predicted them to be.
    measured: dict[str, tuple[float, ...]]
    predicted: dict[str, tuple[float, ...]]
    machine: str

    @property
    def digest(self) -> str:
        """What tells whether the picture is that of these speeds."""
        drawn = json.dumps([self.networks, self.measured, self.predicted, self.machine], sort_keys=True)
        return hashlib.sha256(drawn.encode()).hexdigest()


def speeds() -> Speeds:
    """Return the speeds of the committed results; only what was measured and right is there."""
    models = json.loads((RESULTS / "onnx.json").read_text(encoding="utf-8"))
    operators = json.loads((RESULTS / "cpu.json").read_text(encoding="utf-8"))
    networks: dict[str, dict[int, float]] = {}
    for row in models["models"]:
        if row["ratio"] is not None:
            networks.setdefault(row["model"].removeprefix("light_"), {})[row["batch"]] = row["ratio"]
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in CLASSES}
    for row in operators["operators"]:
        if row["ratio"] is not None and row["predicted_s"] is not None:
            rows[row["kind"]].append(row)
    return Speeds(
        networks,
        {kind: tuple(r["ratio"] for r in found) for kind, found in rows.items()},
        {kind: tuple(r["seconds"][r["best_peer"]] / r["predicted_s"] for r in found) for kind, found in rows.items()},
        f"{models['run']['processor']}, {models['run']['threads']} cores",
    )


def mean(values: tuple[float, ...]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def draw(found: Speeds, palette: Palette, path: Path) -> None:
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
        figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.2), layout="constrained")
        _networks(left, found, palette)
        _operators(right, found, palette)
        for axes in (left, right):
            _frame(axes, palette)
        figure.savefig(path, transparent=True, metadata={"Date": None, "Description": f"drawn from {found.digest}"})
        plt.close(figure)
    # No trailing blanks: matplotlib writes them, and version control would complain.
    lines = [line.rstrip() for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _networks(axes: Axes, found: Speeds, palette: Palette) -> None:
    order = sorted(found.networks, key=lambda name: mean(tuple(found.networks[name].values())))
    for batch, colour in ((1, palette.measured), (8, palette.other)):
        places = [(found.networks[name][batch], y) for y, name in enumerate(order) if batch in found.networks[name]]
        axes.scatter(*zip(*places, strict=True), s=26, color=colour, label=f"measured, batch {batch}", zorder=3)
    axes.set_yticks(range(len(order)), order)
    axes.set_title(f"Whole networks against ONNX Runtime\n{found.machine}", loc="left", fontsize=10)
    axes.set_xlim(0.9, 3.4)
    axes.set_xticks([1, 1.5, 2, 2.5, 3], ["equal", "1.5×", "2×", "2.5×", "3×"])
    axes.legend(loc="lower right", frameon=False, fontsize=8)


def _operators(axes: Axes, found: Speeds, palette: Palette) -> None:
    small = {"s": 13, "zorder": 3, "linewidths": 0.8}
    large = {"s": 70, "marker": "D", "zorder": 4, "linewidths": 1.6}
    for y, kind in enumerate(reversed(CLASSES)):
        measured, predicted = found.measured[kind], found.predicted[kind]
        axes.scatter(measured, [y + 0.17] * len(measured), color=palette.measured, alpha=0.55, **small)
        axes.scatter(predicted, [y - 0.17] * len(predicted), facecolors="none", edgecolors=palette.predicted, **small)
        axes.scatter(mean(measured), y + 0.17, color=palette.measured, edgecolors=palette.text,
                     label="measured" if not y else None, **large)  # fmt: skip
        axes.scatter(mean(predicted), y - 0.17, facecolors="none", edgecolors=palette.predicted,
                     label="predicted before anything ran" if not y else None, **large)  # fmt: skip
    labels = [f"{kind} ({len(found.measured[kind])})" for kind in reversed(CLASSES)]
    axes.set_yticks(range(len(CLASSES)), labels)
    axes.set_title("Operators against the best library: PyTorch,\nONNX Runtime, NumPy; diamonds: means", loc="left",
                   fontsize=10)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 4, 8, 16], ["0.5×", "equal", "2×", "4×", "8×", "16×"])
    axes.set_xlim(0.25, 20)
    axes.minorticks_off()
    axes.set_ylim(-1.5, len(CLASSES) - 0.5)  # the lowest row is the legend's
    axes.legend(loc="lower right", frameon=False, fontsize=8, ncols=2, borderaxespad=0)


def _frame(axes: Axes, palette: Palette) -> None:
    axes.axvline(1, color=palette.text, linewidth=1, zorder=2)
    axes.grid(axis="x", color=palette.grid, linewidth=0.6, zorder=0)
    axes.set_xlabel("speed: the library's time over Roller's")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def main() -> None:
    """Write the pictures."""
    IMAGES.mkdir(exist_ok=True)
    for palette in PALETTES:
        path = IMAGES / f"speed-{palette.name}.svg"
        draw(speeds(), palette, path)
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
