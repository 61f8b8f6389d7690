"""What every suite is: how it measures on this processor, what it predicts for a device, and what it says of both."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.suites.values import Results, Value
from roller.hardware import DeviceSpec


@dataclass(frozen=True)
class Request:
    """What a run is asked for.

    Parameters
    ----------
    spec
        The device: this machine's processor, where the suite measures, or any other, for which it predicts.
    quick
        Few cases, in minutes.
    pattern
        Comma-separated ids or patterns of cases.
    seed
        Of inputs.
    folder
        For journals and pictures.
    """

    spec: DeviceSpec
    quick: bool = False
    pattern: str = "*"
    seed: int = 0
    folder: Path = Path("build/benchmarks")

    def matches(self, name: str) -> bool:
        """Return whether one of the patterns matches a case or model.

        Examples
        --------
        >>> from roller.hardware import load_spec
        >>> request = Request(load_spec("v100"), pattern="M*, C1?")
        >>> [request.matches(name) for name in ("M0", "C12", "C1")]
        [True, True, False]
        """
        return any(fnmatch.fnmatchcase(name, part.strip()) for part in self.pattern.split(","))


#: A part of the report: title, columns, rows.
Section = tuple[str, Sequence[str], Sequence[Sequence[str]]]
Finder = Callable[[Request], Iterator[Value]]


@dataclass(frozen=True)
class Suite:
    """One published evaluation.

    Parameters
    ----------
    name
        On the command line.
    about
        One line: what is evaluated, and whose evaluation it is.
    needs
        What measuring needs beside roller.
    predict
        Values for a device that need not be here.
    measure
        Values of this machine's processor; ``None`` where nothing of the suite can be measured on a processor.
    report
        Sections of the report.
    draw
        Draws on a figure of matplotlib; ``None`` where a table says more.
    caveat
        How to read the predictions, if it is not obvious.
    """

    name: str
    about: str
    needs: str
    predict: Finder
    measure: Finder | None
    report: Callable[[Results], Iterator[Section]]
    draw: Callable[[Results, Any], None] | None = None
    caveat: str = ""
