"""A picture of all predictions: predicted over measured against measured time, both logarithmic, by family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.model_devices.pricing import Priced

#: Predictions beyond these factors are drawn at the edge.
_EDGE = 4.0


def draw(found: Sequence[Priced], path: Path) -> str:
    """Draw one field per family, one colour per device; return why not where matplotlib is missing, else nothing."""
    try:
        import matplotlib
    except ImportError as err:
        return f"no picture: matplotlib is not installed ({err}); pip install 'roller[bench]'"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    families = list(dict.fromkeys(p.case.family for p in found))
    devices = list(dict.fromkeys(p.case.device for p in found))
    columns = min(4, len(families))
    rows = -(-len(families) // columns)
    figure, fields = pyplot.subplots(
        rows, columns, figsize=(3.2 * columns, 2.6 * rows), sharey=True, squeeze=False, layout="constrained"
    )
    for field in fields.flat[len(families) :]:
        field.set_axis_off()
    for field, family in zip(fields.flat, families, strict=False):
        for n, device in enumerate(devices):
            mine = [p for p in found if (p.case.family, p.case.device) == (family, device)]
            if mine:
                ratios = [min(max(p.ratio, 1 / _EDGE), _EDGE) for p in mine]
                field.plot([p.case.measured_s * 1e3 for p in mine], ratios, ".", markersize=3, color=f"C{n}")
        field.axhline(1.0, color="grey", linewidth=0.8)
        field.axhspan(1 / 1.1, 1.1, color="grey", alpha=0.15, linewidth=0)
        field.set(xscale="log", yscale="log", ylim=(0.95 / _EDGE, 1.05 * _EDGE))
        field.set_title(family, fontsize=9)
        field.set_yticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
        field.minorticks_off()
    handles = [pyplot.Line2D([], [], marker=".", linestyle="", color=f"C{n}") for n, _ in enumerate(devices)]
    figure.legend(handles, devices, loc="outside upper center", ncols=len(devices), fontsize=8)
    figure.supxlabel("measured (ms); the band is 10 %", fontsize=8)
    figure.supylabel("predicted / measured", fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return ""
