"""``roller cache``: list, export, import and remove cached kernels."""

from __future__ import annotations

import math
import sqlite3
import time
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from roller.cli.shared_options_and_tables import JsonOption, check_writable, console, print_json, seconds
from roller.runtime.cache import KernelCache
from roller.runtime.cache_limit import parse_size, read_limit_and_origin, set_limit
from roller.runtime.cache_transfer import export_cache, import_cache
from roller.runtime.list_and_drop_cached_kernels import KEY_CHARACTERS, drop_kernel, list_cached_kernels

cache_app = typer.Typer(
    name="cache",
    help="Show, drop, limit, clear, export or import the compiled kernels.",
    no_args_is_help=True,
    add_completion=False,
)

#: Meaning of each kernel status.
_STATUSES = {
    "measured": "chosen by time on this machine, or imported from a run on its device",
    "checked": "correct on its device, not timed: there was no other candidate",
    "predicted": "chosen by prediction, for a device that was not there",
    "doubtful": "timed while other programs disturbed it: measured again when it is asked for",
    "damaged": "its entry cannot be read: compiled again when it is asked for",
}
DeviceFilter = Annotated[str | None, typer.Option("--device", "-d", help="Only kernels for this device.")]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The beginning of a key, as `list` shows it.")]
SizeArgument = Annotated[
    str | None, typer.Argument(metavar="SIZE", help="For example 500M or 4GiB; 'none' for no limit. Shown if absent.")
]
#: Rule that is printed with the limit.
_LIMIT_RULE = "beyond it, what was used least recently goes"
RecordsOption = Annotated[bool, typer.Option("--records", help="Remove the measured times as well.")]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A tar file, e.g. kernels.tar.gz.")]


@cache_app.command("info")
def info_command(as_json: JsonOption = False) -> None:
    """Print where the cache is and how much it contains."""
    info = KernelCache().info()
    if as_json:
        print_json(info)
        return
    screen = console()
    screen.print(f"folder:       {info['folder']}", soft_wrap=True)
    screen.print(f"kernels:      {info['entries']}, of which {info['entries_measured']} ran on their device")
    screen.print(f"artifacts:    {info['artifacts']} files, {bytes_text(info['artifact_bytes'])}")
    screen.print(f"limit:        {_limit_text(info['limit_bytes'])} of artifacts ({info['limit_from']}): {_LIMIT_RULE}")
    screen.print(f"index:        {bytes_text(info['database_bytes'])}")
    screen.print(f"measurements: {info['measurements']}")
    for name in info["damaged_databases"]:
        screen.print(f"set aside:    {name} (damaged; remove it when you have looked at it)")


@cache_app.command("list")
def list_command(device: DeviceFilter = None, as_json: JsonOption = False) -> None:
    """Print every kernel, last used first: operator, device, when it was stored, how it was chosen, and its size."""
    cache = KernelCache()
    found = [h for h in list_cached_kernels(cache) if device is None or device.lower() == h.device.lower()]
    if as_json:
        print_json([h.to_dict() for h in found])
        return
    screen = console()
    if not found:
        screen.print(f"no kernels in {cache.folder}", soft_wrap=True)
        return
    table = Table(box=box.SIMPLE)
    for name in ("key", "operator", "device", "stored", "status"):
        table.add_column(name)
    table.add_column("measured", justify="right")
    table.add_column("size", justify="right")
    for h in found:
        operator = f"{h.operator}({h.arguments})"
        table.add_row(
            h.key[:KEY_CHARACTERS], operator, h.device, local_time_text(h.stored_at), h.status, seconds(h.measured_s),
            bytes_text(h.size_bytes),
        )  # fmt: skip
    screen.print(table)
    for status in dict.fromkeys(h.status for h in found):
        screen.print(f"{status}: {_STATUSES[status]}", soft_wrap=True)
    screen.print(
        f"{len(found)} kernels, {bytes_text(sum(h.size_bytes for h in found))}; `roller cache drop KEY` removes one"
    )


@cache_app.command("drop")
def drop_command(key: KeyArgument, as_json: JsonOption = False) -> None:
    """Remove one kernel; it is compiled again when it is next requested."""
    cache = KernelCache()
    found = drop_kernel(cache, key)
    if as_json:
        print_json({"folder": str(cache.folder), **found.to_dict()})
        return
    console().print(f"removed {found.operator}({found.arguments}) for {found.device}, {bytes_text(found.size_bytes)}",
                    soft_wrap=True)  # fmt: skip


@cache_app.command("limit")
def limit_command(limit: SizeArgument = None, as_json: JsonOption = False) -> None:
    """Show or set the size limit of the cache; if the cache is larger, the least recently used kernels are removed now.

    The environment variable ROLLER_CACHE_SIZE overrides the limit set here.
    """
    cache, removed, freed = KernelCache(), 0, 0
    if limit is not None:
        set_limit(cache.folder, parse_size(limit, "limit"))
        try:
            removed, freed = cache.trim()
        except (OSError, sqlite3.Error) as err:
            raise cache.unusable_folder_error(err) from err
    limit_bytes, source = read_limit_and_origin(cache.folder)
    if as_json:
        print_json({"folder": str(cache.folder), "limit_bytes": limit_bytes, "limit_from": source, "removed": removed,
                    "removed_bytes": freed})  # fmt: skip
        return
    console().print(f"{_limit_text(limit_bytes)} ({source}): {_LIMIT_RULE}", soft_wrap=True)
    if limit is not None:
        console().print(f"removed {removed} artifacts, {bytes_text(freed)}, from {cache.folder}", soft_wrap=True)


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
                    f"({bytes_text(done['bytes'])}){skipped}", soft_wrap=True)  # fmt: skip


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


def local_time_text(at: float | None) -> str:
    """Format a Unix time in this machine's time zone; return ``"-"`` for ``None``."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _limit_text(limit_bytes: float) -> str:
    return "none" if math.isinf(limit_bytes) else bytes_text(limit_bytes)


def bytes_text(count_bytes: float) -> str:
    """Format a number of bytes with a binary unit.

    Examples
    --------
    >>> bytes_text(512), bytes_text(2048), bytes_text(3.5e6)
    ('512 B', '2 KiB', '3.338 MiB')
    """
    value, units = float(count_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.4g} {units[0]}"
