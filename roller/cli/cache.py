"""``roller cache``: what is kept, where, and how to move or remove it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roller.cli.common import JsonOption, check_writable, console, print_json
from roller.runtime.cache import KernelCache
from roller.runtime.cache_transfer import export_cache, import_cache

cache_app = typer.Typer(name="cache", help="Show, clear, export or import the compiled kernels.", no_args_is_help=True)

RecordsOption = Annotated[bool, typer.Option("--records", help="Remove the measured times as well.")]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A tar file, e.g. kernels.tar.gz.")]


@cache_app.command("info")
def info_command(as_json: JsonOption = False) -> None:
    """Print where the cache is, and how much is in it."""
    info = KernelCache().info()
    if as_json:
        print_json(info)
        return
    screen = console()
    screen.print(f"folder:       {info['folder']}", soft_wrap=True)
    screen.print(f"kernels:      {info['entries']}, of which {info['entries_measured']} ran on their device")
    screen.print(f"artifacts:    {info['artifacts']} files, {size(info['artifact_bytes'])}")
    screen.print(f"index:        {size(info['database_bytes'])}")
    screen.print(f"measurements: {info['measurements']}")
    for name in info["damaged_databases"]:
        screen.print(f"set aside:    {name} (damaged; remove it when you have looked at it)")


@cache_app.command("clear")
def clear_command(records: RecordsOption = False, as_json: JsonOption = False) -> None:
    """Remove all kernels; measured times are kept unless --records is given."""
    cache = KernelCache()
    removed = cache.clear(measurements=records)
    if as_json:
        print_json({"folder": str(cache.folder), "artifacts_removed": removed, "records_removed": records})
    else:
        console().print(f"removed {removed} artifacts from {cache.folder}", soft_wrap=True)


@cache_app.command("export")
def export_command(file: FileArgument, as_json: JsonOption = False) -> None:
    """Write all kernels and measured times to a tar file with checksums."""
    check_writable(file)
    done = export_cache(KernelCache(), file)
    if as_json:
        print_json({"file": str(file), **done})
        return
    skipped = f"; {done['skipped']} damaged entries were left out" if done["skipped"] else ""
    console().print(f"wrote {done['entries']} kernels and {done['measurements']} measurements to {file} "
                    f"({size(done['bytes'])}){skipped}", soft_wrap=True)  # fmt: skip


@cache_app.command("import")
def import_command(file: FileArgument, as_json: JsonOption = False) -> None:
    """Add the kernels of an exported file. They are code that will run here: import only what you trust."""
    cache = KernelCache()
    done = import_cache(cache, file)
    if as_json:
        print_json({"folder": str(cache.folder), **done})
        return
    console().print(f"imported {done['written']} of {done['entries']} kernels and {done['measurements']} measurements "
                    f"into {cache.folder}", soft_wrap=True)  # fmt: skip


def size(count_bytes: float) -> str:
    """Return a number of bytes for people.

    Examples
    --------
    >>> size(512), size(2048), size(3.5e6)
    ('512 B', '2 KiB', '3.338 MiB')
    """
    value, units = float(count_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.4g} {units[0]}"
