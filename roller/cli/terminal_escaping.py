"""Escapes control characters in all command-line output, except those of Rich's colours and progress bars.

Names of files, models, nodes, kernels and profiles are untrusted.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from roller.errors import printable

#: Escape sequences for colours and styles.
_STYLE = r"\x1b\[[0-9;:]*m"
#: Escape sequences that redraw a bar: hide the cursor, move it up or to the start of the line, erase the line.
_BAR = r"|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\r"


class PrintableStream:
    """Text stream that escapes control characters; if ``bars``, it lets the sequences that draw progress bars pass."""

    def __init__(self, stream: TextIO, bars: bool) -> None:
        self._stream = stream
        self._allowed = re.compile(f"({_STYLE}{_BAR if bars else ''})")

    def write(self, text: str) -> int:
        """Write the escaped text; return the number of characters taken from ``text``."""
        if text.isascii() and text.isprintable():  # most of them
            return self._stream.write(text)
        # Rich also colours a pipe if FORCE_COLOR requests it.
        coloured = self._stream.isatty() or bool(os.environ.get("FORCE_COLOR"))
        parts = self._allowed.split(text) if coloured else [text]
        self._stream.write("".join(p if n % 2 else printable(p) for n, p in enumerate(parts)))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def escape_terminal_output() -> Iterator[None]:
    """Escape control characters in everything printed in this context."""
    out, err = sys.stdout, sys.stderr
    if out is not None:
        sys.stdout = cast("TextIO", PrintableStream(out, bars=False))
    if err is not None:
        sys.stderr = cast("TextIO", PrintableStream(err, bars=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


@contextlib.contextmanager
def redirect_stdout_to_stderr() -> Iterator[None]:
    """Redirect the standard output of user code to standard error, since only results may go to standard output."""
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # closed
        kept = -1
    if kept >= 0:
        with contextlib.suppress(OSError):
            os.dup2(2, 1)  # covers child processes and C libraries
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if kept >= 0:
            os.dup2(kept, 1)
            os.close(kept)
