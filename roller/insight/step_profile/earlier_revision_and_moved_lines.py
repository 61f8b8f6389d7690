"""A project at an earlier git revision, and the lines that have moved since."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from tempfile import TemporaryDirectory

from roller.errors import RollerError, shown
from roller.insight.capture.idle_timeout import PATIENCE_S
from roller.insight.capture.script_tracer import ScriptTracer
from roller.insight.project_tracer import ProjectTracer
from roller.insight.trace.options import TraceOptions
from roller.insight.traced_step import TracedStep
from roller_runtime.core.files import read_text

_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Revision:
    """A project at a git revision."""

    name: str  # revision in git's syntax, such as ``"HEAD~1"``
    entry: Path  # entry file or training script of that revision, in a temporary folder
    # before, after: folders of the project at the revision, and of the working tree
    before: Path
    after: Path
    commit: str = ""

    @contextmanager
    def step(
        self, options: TraceOptions, calls: int | None = None, arguments: Sequence[str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Iterator[TracedStep]:  # fmt: skip
        """Yield the step, traced in a separate process, since modules in both revisions have the same names."""
        made = (
            ProjectTracer(self.entry, calls=calls)
            if arguments is None
            else ScriptTracer(self.entry, arguments, patience_s=patience_s, calls=calls)
        )
        with made as project:
            yield project.step(options)

    def moved_line_names_by_old_name(self) -> Mapping[str, str]:
        """Map ``"file:line"`` at the revision to that in the working tree, for matching lines of Python files."""
        found: dict[str, str] = {}
        for old in sorted(self.before.rglob("*.py")):
            name = old.relative_to(self.before).as_posix()
            new = self.after / name
            if not new.is_file():
                continue
            try:
                texts = [read_text(path) for path in (old, new)]
            except (OSError, ValueError):
                continue
            found.update(moved_line_names(name, *texts))
        return found


def moved_line_names(name: str, old: str, new: str) -> Iterator[tuple[str, str]]:
    """Yield ``"file:line"`` before and after, for lines that are equal or were replaced one by one."""
    for before, after in moved_line_numbers(split_source_lines(old), split_source_lines(new)):
        yield f"{name}:{before}", f"{name}:{after}"


def moved_line_numbers(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield line numbers (from 1) before and after, for lines that are equal or were replaced one by one."""
    yield from ((a + 1, b + 1) for a, b in _matching_line_pairs(old, (0, len(old)), new, (0, len(new))))


def _matching_line_pairs(
    old: Sequence[str], olds: tuple[int, int], new: Sequence[str], news: tuple[int, int]
) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Yield pairs of matching lines in two ranges: common ends, unique lines, and matching lines between these."""
    (a, a_end), (b, b_end) = olds, news
    least = min(a_end - a, b_end - b)
    head = next((n for n in range(least) if old[a + n] != new[b + n]), least)
    tail = next((n for n in range(least - head) if old[a_end - 1 - n] != new[b_end - 1 - n]), least - head)
    yield from ((a + n, b + n) for n in range(head))
    (a, b), ends = (a + head, b + head), (a_end - tail, b_end - tail)
    anchors = _unique_line_pairs(old, (a, ends[0]), new, (b, ends[1]))
    if anchors:
        for a_next, b_next in [*anchors, ends]:
            yield from _matching_line_pairs(old, (a, a_next), new, (b, b_next))
            a, b = a_next, b_next
    else:
        middle = old[a : ends[0]], new[b : ends[1]]
        for tag, a_from, a_to, b_from, b_to in SequenceMatcher(None, *middle, autojunk=False).get_opcodes():
            if tag == "equal" or (tag == "replace" and a_to - a_from == b_to - b_from):
                yield from ((a + a_from + n, b + b_from + n) for n in range(a_to - a_from))
    yield from ((a_end - n, b_end - n) for n in range(tail, 0, -1))


def _unique_line_pairs(
    old: Sequence[str], olds: tuple[int, int], new: Sequence[str], news: tuple[int, int]
) -> list[tuple[int, int]]:  # fmt: skip
    """Return the longest increasing sequence of pairs of lines that are unique in both ranges."""
    if olds[0] == olds[1] or news[0] == news[1]:
        return []
    once = _unique_line_numbers_by_text(old, olds)
    pairs = sorted((once[line], n) for line, n in _unique_line_numbers_by_text(new, news).items() if line in once)
    ends: list[int] = []  # the smallest end of a sequence of each length, and its pair
    last: list[int] = []
    before: list[int] = []
    for number, (_, b) in enumerate(pairs):
        length = bisect_left(ends, b)
        ends[length : length + 1] = [b]
        last[length : length + 1] = [number]
        before.append(last[length - 1] if length else -1)
    found, number = [], last[-1] if last else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


def _unique_line_numbers_by_text(lines: Sequence[str], within: tuple[int, int]) -> dict[str, int]:
    counts = Counter(lines[within[0] : within[1]])
    return {lines[n]: n for n in range(*within) if counts[lines[n]] == 1}


def split_source_lines(text: str) -> list[str]:
    """Split source text into lines as Python does: form feeds and Unicode separators do not end a line."""
    return _LINE_END.split(text)


@contextmanager
def checkout_revision(entry: Path, revision: str) -> Iterator[Revision]:
    """Extract a revision of a project to a temporary folder; leave the working tree unchanged."""
    if revision.startswith("-"):
        raise RollerError(f"git: expected a revision, got {shown(revision)}. Name one, e.g. HEAD~1.")
    where = f"--against git:{revision}"
    inside = _git_output_or_none(entry.resolve().parent, "rev-parse", "--show-toplevel")
    if inside is None:
        raise RollerError(f"{where}: expected {entry.name} in a repository of git, got one in none. Name a file.")
    root = Path(inside.decode().strip())
    commit = commit_hash(root, revision)
    place = entry.resolve().relative_to(root)
    with TemporaryDirectory(prefix="roller-") as folder:
        with tarfile.open(
            fileobj=io.BytesIO(_git_output_or_none(root, "archive", "--format=tar", commit) or b"")
        ) as archive:
            _extract_archive(archive, folder)
        before = Path(folder).resolve()
        (before / ".git").touch()  # paths of stacks are relative to the repository, as in the working tree
        if not (before / place).is_file():
            raise RollerError(
                f"{place}: expected a file at revision {shown(revision)}, got none. {_missing_file_remedy(root, place)}"
            )
        yield Revision(revision, before / place, before, root, commit)


def _member_if_inside_folder(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Return an archive member; ``None`` if it leads outside the folder, as links to data may."""
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None


def commit_hash(folder: Path, revision: str) -> str:
    """Return the commit hash of a revision."""
    found = _git_output_or_none(folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    if found is None:
        raise RollerError(
            f"--against git:{revision}: expected a revision of this repository, got none. Name one that is there, e.g. "
            f"HEAD~1."
        )
    return found.decode().strip()


def _extract_archive(archive: tarfile.TarFile, folder: str) -> None:
    """Extract a git archive; patch releases of Python 3.10 before 3.10.12 have no extraction filter."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter=_member_if_inside_folder)
    else:
        archive.extractall(folder)


def _missing_file_remedy(root: Path, place: Path) -> str:
    if _git_output_or_none(root, "ls-files", "--error-unmatch", "--", str(place)) is None:
        return "It is not in git: commit it first."
    return "Name a revision that has it."


def _git_output_or_none(folder: Path, *arguments: str) -> bytes | None:
    try:
        found = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    except OSError as error:
        raise RollerError(f"git: expected the program, got none ({error.strerror}). Install it.") from error
    return None if found.returncode else found.stdout
