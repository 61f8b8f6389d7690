"""The GPU hour: ``python -m benchmarks.gpu pack`` here, ``python3 b/run.py`` there, ``... report`` here."""

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
    device: Annotated[str, typer.Option("--device", "-d", help="Spec of the GPU it will run on.")] = "h200",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Candidates of every operator.")] = 10,
    pattern: Annotated[str, typer.Option("--filter", help="Comma-separated ids or patterns.")] = "*",
    parts: Annotated[str, typer.Option(help="Parts of it.")] = "variants,probes,operators,models",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes at a time.")] = None,
    prove_s: Annotated[float, typer.Option("--prove-s", min=0, help="Emulate kernels for so long.")] = 240.0,
    sources: Annotated[bool, typer.Option("--sources", help="No binaries: build where it is run.")] = False,
) -> None:
    """Build all that a GPU hour runs, and what runs it, into one folder."""
    from benchmarks.gpu.pack import Options, make_pack

    chosen = tuple(p.strip() for p in parts.split(","))
    make_pack(device, out, Options(top_k, pattern, chosen, workers, sources, prove_s), print)


@app.command("report")
def report_command(
    pack: Annotated[Path, typer.Argument(help="Folder that `pack` wrote.")],
    results: Annotated[Path, typer.Argument(help="Folder that its run.py wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; made where it is missing.")],
    name: Annotated[str, typer.Option(help="Name of the specification that is written from the probes.")] = "",
) -> None:
    """Turn results into a specification, tables, and a list of what to do next."""
    from benchmarks.gpu.bring_home import bring_home

    print(bring_home(pack, results, out, name))


if __name__ == "__main__":
    try:
        app()
    except RollerError as err:
        sys.stderr.write(f"benchmarks.gpu: error: {err}\n")
        sys.exit(1)
