"""``python -m benchmarks.models NAME --out DIR``: write a network as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.models.registry import MODELS, build


def main(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(MODELS)}, or 'all'.")],
    out: Annotated[Path, typer.Option(help="Folder; a model that is there is left as it is.")],
    batch: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Write a network with random weights as an ONNX file and print its path."""
    for one in MODELS if name == "all" else (name,):
        print(build(one, out, batch))


if __name__ == "__main__":
    typer.run(main)
