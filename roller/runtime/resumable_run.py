"""Runs that survive a kill at any moment: a journal of finished items, and results that grow."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from roller.errors import MALFORMED, ArtifactError
from roller.runtime.cache_entry import host_fingerprint
from roller.runtime.crash_safe_journal import JournalFile
from roller_runtime.storage.verified_container import DocumentKind

T = TypeVar("T")
#: Number of faulty items after which the rest of a group is skipped; each costs the time limit and a new process.
_MOST_FAULTS = 2


@contextmanager
def _row_errors_as_artifact_error(path: Path) -> Iterator[Path]:
    """Turn errors from the rows of a file into an :class:`ArtifactError`."""
    try:
        yield path
    except ArtifactError:
        raise
    except (ValueError, *MALFORMED) as err:
        raise ArtifactError(f"{path}: expected the rows of a run, got others ({err!r}). Remove it.") from err


class ResumedRun:
    """A run over a container's items; it can be killed and resumed without loss or repetition.

    Parameters
    ----------
    out
        File for the final results, next to the journal; earlier results of the same run are extended.
    kind
        Kind of the results document.
    header
        Identifies the run; results and journals of another run are refused.
    take
        Function called with every known row: those of earlier results and of the journal, and each new one.
    rows
        Function that converts earlier results to journal rows.

    Raises
    ------
    ArtifactError
        If earlier results or the journal are damaged, belong to another run, or cannot be written.
    """

    def __init__(
        self, out: Path, kind: DocumentKind, header: Mapping[str, Any], take: Callable[[dict[str, Any]], None],
        rows: Callable[[dict[str, Any]], Iterable[dict[str, Any]]],
    ) -> None:  # fmt: skip
        self.header = header
        self._out, self._kind, self._take = out, kind, take
        if out.exists():
            earlier = kind.read(out)
            if any(earlier.get(k) != v for k, v in header.items()):
                raise ArtifactError(f"{out}: holds the results of another run. Remove it, or choose another --json.")
            with _row_errors_as_artifact_error(out):
                for row in rows(earlier):
                    take(row)
        with _row_errors_as_artifact_error(out.with_name(out.name + ".journal")) as journal:
            self._journal = JournalFile(journal, header, take)

    def keep(self, row: Mapping[str, Any]) -> None:
        """Store one row; it is on disk when this returns."""
        self._journal.append(row)
        self._journal.sync()
        self._take(dict(row))

    def run(self, work: Callable[[], None], body: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Do the remaining work and write the results, even after an interrupt."""
        try:
            work()
        finally:
            results = self.finish(body())
        return results

    def finish(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write and return the results; remove the journal if they are ``complete``."""
        results = self._kind.write(self._out, {**self.header, **body})
        self._journal.close(remove=results["complete"])
        return results


def run_unknown_items(
    names: Iterable[str], known: Container[str], run: Callable[[str], T], *, late: Callable[[], bool],
    faulty: Callable[[T], bool], not_run: Callable[[str, int], T], faults: int = 0,
) -> Iterator[tuple[str, T]]:  # fmt: skip
    """Run the items not yet ``known``, until ``late``, and yield their results; after a few faults, use ``not_run``."""
    for name in names:
        if name in known:
            continue
        if late():
            return
        result = run(name) if faults < _MOST_FAULTS else not_run(name, faults)
        faults += faulty(result)
        yield name, result


def machine_facts() -> dict[str, Any]:
    """Return versions, host and time for a results document."""
    versions = {"roller": sys.modules["roller"].__version__, "python": platform.python_version(),
                "numpy": np.__version__}  # fmt: skip
    return {"versions": versions, "host": host_fingerprint(), "finished_at": time.time()}
