"""``python -m benchmarks.training``: the published figures of the training benchmark, predicted for its devices.

Every figure is predicted: no such device is here. ``--quick`` leaves the studies out; ``--studies FILE`` takes those
that ``roller suite observe --out FILE`` wrote; ``--write`` puts JSON and Markdown under ``results/``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.common import HERE, check_outputs, markdown, screen, table, write_json
from roller import __version__
from roller.cli.training_options import parse_devices
from roller.suite.observations import check_observations
from roller.suite.prediction import predict
from roller.suite.registry import MODELS, models_of
from roller.suite.run_file import run_header
from roller.suite.studies import Studies, cluster_study, run_studies
from roller.suite.tracing import trace_workload

#: Model -> batches of published figures; ``None`` is the model's own batch.
CASES: Mapping[str, tuple[int | None, ...]] = {
    "resnet50": (32,), "inception_v3": (16, 32), "seq2seq": (64, 128), "transformer": (None,), "faster_rcnn": (1,),
    "deep_speech_2": (None,), "wgan_gp": (None,), "a3c": (None,),
}  # fmt: skip
#: The model of the published study of networks.
NETWORKS = "resnet50"
#: What a row of a prediction keeps.
KEPT = (
    "model", "device", "batch", "kind", "unit", "throughput_per_s", "throughput_lower_per_s", "throughput_upper_per_s",
    "compute_utilisation", "peak_share", "most_bytes", "kernels",
)  # fmt: skip
RESULTS = HERE / "results" / "training.json"
_COLUMNS = ("model", "device", "batch", "throughput, predicted", "between", "active", "of peak", "feature maps")


def predicted_rows(device: str) -> Iterator[dict[str, Any]]:
    """Yield the kept part of the prediction of every case."""
    specs = [spec for spec, _ in parse_devices(device, None)]
    for name, batches in CASES.items():
        for one in predict(models_of([name]), specs, batches):
            row = one.to_dict()
            yield {key: row[key] for key in KEPT}


def observed(studies: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the verdicts of studies with the figures of what speaks against each, of the models that decide."""
    found = []
    for one in studies["observations"]:
        against = [
            f"{case['name']}: {case['figures']}" for case in one["cases"]
            if not case["agrees"] and MODELS[case["model"]].edition == 1
        ]  # fmt: skip
        found.append({**{key: value for key, value in one.items() if key != "cases"}, "against": against})
    return found


def feature_map_share(row: Mapping[str, Any]) -> float:
    """Return the most bytes of feature maps over those of all published kinds."""
    kinds = ("weights", "gradients", "feature maps", "workspace", "dynamic")
    return row["most_bytes"].get("feature maps", 0) / sum(row["most_bytes"].get(kind, 0) for kind in kinds)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    if row["throughput_per_s"] is None:
        return row["model"], row["device"], str(row["batch"]), "does not fit", "-", "-", "-", "-"
    return (
        row["model"], row["device"], str(row["batch"]), f"{row['throughput_per_s']:,.4g} {row['unit']}/s",
        f"{row['throughput_lower_per_s']:,.4g} to {row['throughput_upper_per_s']:,.4g}",
        f"{100 * row['compute_utilisation']:.1f} %", f"{100 * row['peak_share']:.1f} %",
        f"{100 * feature_map_share(row):.0f} %",
    )  # fmt: skip


def _reason(one: Mapping[str, Any]) -> str:
    return one["missing"] or (f"Possible cause: {one['possible_cause']}" if one["possible_cause"] else "")


def _observation_cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    counted = f"{one['agreeing']} of {one['decisive']}" if one["decisive"] else "-"
    shown, more = one["against"][:3], len(one["against"]) - 3
    against = f"Against it: {'; '.join(shown)}{f'; and {more} more' if more > 0 else ''}." if shown else ""
    return one["claim"], one["verdict"], counted, f"{_reason(one)} {against}".strip() or "-"


def report(data: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        "# The training benchmark, predicted", "",
        "Nothing here is measured: every figure is a prediction for the kernels of PyTorch's libraries at the "
        "sustained clock.", f"{data['run']['date'][:10]}, roller {data['run']['environment']['roller']}.", "",
        markdown(_COLUMNS, map(_cells, data["rows"])), "", "## Networks", "",
        markdown(
            ("model", "device", "cluster", "throughput, predicted", "times one device"),
            [
                (c["model"], c["device"], c["cluster"], f"{c['throughput']:,.4g}",
                 f"{c['throughput'] / data['clusters'][0]['throughput']:.2f}")
                for c in data["clusters"] if c["throughput"]
            ],
        ),
    ]  # fmt: skip
    if data["observations"]:
        lines += ["", "## Observations", "", "Each observation is judged by the models of the benchmark's first "
                  "edition, on which it was made.", ""]  # fmt: skip
        columns = ("observation", "verdict, predicted", "cases", "why")
        lines.append(markdown(columns, map(_observation_cells, data["observations"])))
    return "\n".join(lines) + "\n"


def _studies(path: Path | None, device: str, quick: bool) -> Mapping[str, Any]:
    if path is not None:
        studies = Studies.from_dict(json.loads(path.read_text(encoding="utf-8")))
    elif quick:
        return {"observations": []}
    else:
        studies = run_studies(models_of(CASES), [spec for spec, _ in parse_devices(device, None)])
    return {"observations": [one.to_dict() for one in check_observations(studies)]}


def _clusters(device: str) -> Sequence[Mapping[str, Any]]:
    model, spec = MODELS[NETWORKS], parse_devices(device, None)[0][0]
    workload = model.workload()
    step = trace_workload(model.name, workload, device=spec)
    return [row.to_dict() for row in cluster_study(model, workload.units_per_sample, step, spec)]


def main(
    device: Annotated[
        str, typer.Option("--device", help="GPUs; the first also in the study of networks.")
    ] = "p4000,titanxp",
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the observations.")] = False,
    studies: Annotated[
        Path | None, typer.Option("--studies", help="Take what `roller suite observe --out` wrote.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the results to this file.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write results/training.json and .md.")] = False,
) -> None:
    """Predict the published figures of the training benchmark."""
    check_outputs(json_file)
    data: dict[str, Any] = {
        "run": run_header(__version__, device=device), "rows": list(predicted_rows(device)),
        "clusters": _clusters(device), "observations": observed(_studies(studies, device, quick)),
    }  # fmt: skip
    screen().print(table("predicted", _COLUMNS, map(_cells, data["rows"])))
    for one in data["observations"]:
        screen().print(f"{one['number']}. {one['verdict']}: {one['claim']} {_reason(one)}")
    write_json(json_file, data)
    if write:
        write_json(RESULTS, data)
        RESULTS.with_suffix(".md").write_text(report(data), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
