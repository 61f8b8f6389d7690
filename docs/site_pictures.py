"""Adds the pictures of ``benchmarks/results`` to the site, next to the pages that include these results."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site with the pictures."""
    for picture in sorted(_RESULTS.glob("*.png")):
        files.append(File.generated(config, f"results/{picture.name}", abs_src_path=str(picture)))
    return files
