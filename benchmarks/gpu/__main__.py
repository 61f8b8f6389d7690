"""``python -m benchmarks.gpu prepare|report``; on the GPU machine: ``python benchmarks/gpu/run.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from roller.errors import RollerError

app = typer.Typer(add_completion=False, no_args_is_help=True, help=(__doc__ or "").strip())
#: Size the bundle stays under (bytes).
LIMIT_BYTES = 60_000_000


@app.command("prepare")
def prepare_command(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; must not exist.")],
    device: Annotated[str, typer.Option("--device", "-d", help="Spec of the GPU it will run on.")] = "h200",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1)] = 10,
    pattern: Annotated[str, typer.Option("--filter", help="Comma-separated ids or patterns.")] = "*",
    limit_bytes: Annotated[int, typer.Option(min=1, help="Binaries of the worst ranks go, above.")] = LIMIT_BYTES,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes at a time.")] = None,
    sources: Annotated[bool, typer.Option("--sources", help="No binaries: build where it is run.")] = False,
) -> None:
    """Build all candidates of all operators into one folder."""
    from benchmarks.gpu.prepare import prepare

    done = prepare(device, out, top_k=top_k, pattern=pattern, limit_bytes=limit_bytes, workers=workers, sources=sources)
    for p in done:
        for note in (*p.notes, *([f"left out: {p.left_out}"] if p.left_out else [])):
            print(f"{p.id}: {note}")
    print(f"there: python benchmarks/gpu/run.py {out.name} --json r.json")


@app.command("report")
def report_command(
    results: Annotated[Path, typer.Argument(help="JSON of benchmarks/gpu/run.py.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Markdown file; the screen when absent.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="Spec (a probed YAML, best) to give shares of ceilings by.")
    ] = None,
) -> None:
    """Turn results into Markdown tables."""
    from benchmarks.gpu.report import read_results, render
    from roller.hardware import load_spec

    text = render(read_results(results), load_spec(device) if device else None)
    if out is None:
        print(text)
    else:
        out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        app()
    except RollerError as err:
        sys.stderr.write(f"benchmarks.gpu: error: {err}\n")
        sys.exit(1)
