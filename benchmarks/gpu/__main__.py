"""A quarter hour on a GPU: ``python -m benchmarks.gpu pack`` here, ``python3 b/run.py`` there, ``... report`` here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from roller.errors import RollerError

app = typer.Typer(add_completion=False, no_args_is_help=True, help=(__doc__ or "").strip())


@app.command("pack")
def pack_command(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; must not exist.")],
    device: Annotated[str, typer.Option("--device", "-d", help="Specs of the GPUs it may run on.")] = "h100,h200",
    minutes: Annotated[float, typer.Option(min=1, help="Of the run it is made for: how much it holds.")] = 11.0,
    top_k: Annotated[int | None, typer.Option("--top-k", "-k", min=1, help="Candidates of every operator.")] = None,
    pattern: Annotated[str, typer.Option("--filter", help="Comma-separated ids or patterns.")] = "*",
    parts: Annotated[str, typer.Option(help="Parts of it.")] = "variants,operators,probes,models",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes at a time.")] = None,
    prove_s: Annotated[float, typer.Option("--prove-s", min=0, help="Emulate kernels for so long.")] = 0.0,
    sources: Annotated[bool, typer.Option("--sources", help="No binaries: build where it is run.")] = False,
    max_mib: Annotated[float, typer.Option("--max-mib", min=0, help="Refuse a pack that is larger.")] = 40.0,
) -> None:
    """Build all that a run on a GPU needs, and what runs it, into one folder."""
    from benchmarks.gpu.pack import Options, make_pack

    devices, chosen = (tuple(p.strip() for p in text.split(",") if p.strip()) for text in (device, parts))
    made = Options(minutes, top_k, pattern, chosen, workers, sources, prove_s, most_mib=max_mib)
    make_pack(devices, out, made, print)


@app.command("report")
def report_command(
    pack: Annotated[Path, typer.Argument(help="Folder that `pack` wrote.")],
    results: Annotated[Path, typer.Argument(help="Folder that its run.py wrote, of one card or several.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; made where it is missing.")],
    name: Annotated[str, typer.Option(help="Name of the specification that is written from the probes.")] = "",
) -> None:
    """Turn results into a specification, tables, and a list of what to do next."""
    from benchmarks.gpu.bring_home import bring_home, results_in

    found = results_in(results)
    for folder in found:
        print(bring_home(pack, folder, out / folder.name if len(found) > 1 else out, name))


if __name__ == "__main__":
    try:
        app()
    except RollerError as err:
        sys.stderr.write(f"benchmarks.gpu: error: {err}\n")
        sys.exit(1)
