"""Runs a suite, writes its results, and compares them with those of the last run."""

from __future__ import annotations

import hashlib
import math
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common import HERE, markdown, screen, table
from benchmarks.suites.suite import Request, Suite
from benchmarks.suites.values import PREDICTED, PUBLISHED, Change, Results, Value, changes, read, write
from roller import __version__
from roller.errors import RollerError, printable
from roller.hardware import DeviceSpec, list_specs, load_spec
from roller.hardware.detect_cpu_spec import is_this_machine
from roller.suite.run_file import run_header

#: Changes that are printed.
_MOST_CHANGES = 20
#: Characters of a pattern that a file's name has, before its hash.
_MOST_SLUG = 32
#: Entries of the head in which two runs agree that are compared.
SAME_RUN = ("suite", "device", "filter", "quick", "seed")


def run_suite(suite: Suite, request: Request) -> Results:
    """Return the values of a suite for the device asked for: measured if it is this machine's processor.

    Raises
    ------
    RollerError
        The suite finds nothing, or measures nothing on a processor.
    """
    here = is_this_machine(request.spec)
    if here and suite.measure is None:
        raise RollerError(
            f"{suite.name}: expected a device to predict, got this machine's processor, on which the suite measures "
            f"nothing. Name one with --device."
        )
    find = suite.measure if here and suite.measure is not None else suite.predict
    values = tuple(find(request))
    if all(value.kind == PUBLISHED for value in values):
        raise RollerError(f"{suite.name}: expected cases, got none that match '{request.pattern}'. See --filter.")
    head = run_header(
        __version__, suite=suite.name, device=request.spec.name, quick=request.quick, filter=request.pattern,
        seed=request.seed, revision=revision(),
    )  # fmt: skip
    return Results(head, values)


def revision() -> str:
    """Return the commit of this checkout, with ``+`` where files differ from it; ``"unknown"`` outside one."""
    try:
        words = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--abbrev=12"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def stem_of(suite: Suite, request: Request) -> Path:
    """Return the path of a run's files without their endings; a filtered run has files of its own."""
    device = _device_slug(request.spec)
    return request.folder / f"{suite.name}-{device}{'-quick' if request.quick else ''}{_slug(request.pattern)}"


def _device_slug(spec: DeviceSpec) -> str:
    """Return the name of a device for a file; a specification of one's own has its digest, since names may repeat."""
    if is_this_machine(spec) or (spec.name in list_specs() and spec == load_spec(spec.name)):
        return spec.name
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(spec.name).name)[:_MOST_SLUG]
    return f"{words}-{hashlib.sha256(repr(spec).encode()).hexdigest()[:8]}"


def _slug(pattern: str) -> str:
    if pattern == "*":
        return ""
    words = re.sub(r"[^A-Za-z0-9_-]+", "-", pattern).strip("-")[:_MOST_SLUG]
    return "-".join(("", *([words] if words else []), hashlib.sha256(pattern.encode()).hexdigest()[:8]))


def page(suite: Suite, results: Results, picture: str = "") -> str:
    """Return a run as Markdown."""
    head = results.head
    parts = [
        f"# {suite.about}",
        f"{kinds_of(results.values)}. Device: {head['device']}; {head['date'][:10]}, roller "
        f"{head['environment']['roller']}, seed {head['seed']}{', quick' if head['quick'] else ''}.",
    ]
    parts += [text for text in (_caveat(suite, results), f"![{suite.about}]({picture})" if picture else "") if text]
    for title, columns, rows in suite.report(results):
        parts += [f"## {title}", markdown(columns, rows)]
    return "\n\n".join(parts) + "\n"


def _caveat(suite: Suite, results: Results) -> str:
    return suite.caveat if any(value.kind == PREDICTED for value in results.values) else ""


def kinds_of(values: Sequence[Value]) -> str:
    """Return which kinds of values there are, as a sentence without its stop.

    Examples
    --------
    >>> kinds_of([Value("a", "time", "Roller", 1.0, "s", "predicted")])
    'All values are predicted: no device ran anything'
    """
    kinds = list(dict.fromkeys(value.kind for value in values))
    if kinds == ["predicted"]:
        return "All values are predicted: no device ran anything"
    return f"Values are {', '.join(kinds[:-1])}{' and ' if len(kinds) > 1 else ''}{kinds[-1]}, as the columns say"


def check_folder(folder: Path) -> None:
    """Make the folder of results, before the work that goes into them.

    Raises
    ------
    RollerError
        It cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RollerError(
            f"--out: expected a folder that can be written, got {error.strerror}. Name another."
        ) from error


def finish(suite: Suite, request: Request, results: Results) -> None:
    """Print the tables, write JSON, Markdown and the picture, and compare with the last run of the same kind."""
    out, stem = screen(), stem_of(suite, request)
    check_folder(request.folder)
    path = stem.with_name(f"{stem.name}.json")
    lines = _compared_or_not(path, results)
    write(path, results)
    for title, columns, rows in suite.report(results):
        out.print(table(f"{title} ({results.head['device']})", columns, rows))
    out.say(f"{kinds_of(results.values)}. {_caveat(suite, results)}".strip())
    for line in lines:
        out.print(printable(line), markup=False, soft_wrap=True)
    picture = draw(suite, results, stem.with_name(f"{stem.name}.png"))
    stem.with_name(f"{stem.name}.md").write_text(page(suite, results, picture.name if picture else ""), "utf-8")
    names = [".json", ".md", *([".png"] if picture else [])]
    out.print(f"{stem}{', '.join(names)}", markup=False)


def _compared_or_not(path: Path, results: Results) -> list[str]:
    """Return what changed since the last run, or why that cannot be said: no new run is lost for an old file."""
    try:
        return list(compared(path, results))
    except RollerError as error:
        return [f"The earlier run cannot be read: {error}"]


def compared(path: Path, results: Results) -> Iterator[str]:
    """Yield what changed since the last run, whose file this is."""
    if not path.exists():
        yield "No earlier run to compare with."
        return
    last = read(path)
    other = [name for name in SAME_RUN if last.head.get(name) != results.head.get(name)]
    if other:
        yield f"The earlier run is not comparable: its {', '.join(other)} {'differ' if other[1:] else 'differs'}."
        return
    found, keys = changes(last, results), {v.key for v in results.values}
    same = len(keys) - sum(change.key in keys for change in found)
    count = f"{len(found)} value{'' if len(found) == 1 else 's'}"
    yield f"Since {last.head['date']} ({last.head['revision']}): {count} changed, {same} did not."
    found.sort(key=_size, reverse=True)
    for change in found[:_MOST_CHANGES]:
        yield f"  {_spelled(change)}"
    if len(found) > _MOST_CHANGES:
        yield f"  and {len(found) - _MOST_CHANGES} more"


def _size(change: Change) -> float:
    """Return how large a change is, for sorting; of a value that only one run has, infinity."""
    ratio = change.ratio
    return abs(math.log(ratio)) if ratio is not None and ratio > 0 else math.inf


def _spelled(change: Change) -> str:
    before, after = ("none" if v is None else f"{v:.6g}" for v in (change.before, change.after))
    ratio = f" ({change.ratio:.3f} times)" if change.ratio is not None else ""
    return f"{', '.join(change.key)}: {before} -> {after}{ratio}"


def draw(suite: Suite, results: Results, path: Path) -> Path | None:
    """Draw the suite's figure; return its file, or ``None`` without matplotlib or a figure."""
    if suite.draw is None:
        return None
    try:
        import matplotlib
    except ImportError:
        screen().print("No figure: it needs matplotlib, which is not installed; pip install 'roller[bench]'.")
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(9.0, 4.5), layout="constrained")
    suite.draw(results, figure)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
