"""Writes the examples of ``docs/explain.md``: what the command line prints, for devices that are nobody's own machine.

``python docs/explain_example.py`` writes it; ``tests/explanation/test_docs.py`` holds it up to date.
"""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

from roller.cli.main import main

PATH = Path(__file__).with_name("explain.md")
#: A block of the page that the command in its first line fills.
_BLOCK = re.compile(r"```text\n\$ roller ([^\n]*)\n(.*?)```\n", re.DOTALL)


def printed(command: str) -> str:
    """Return what a command line prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        try:
            main(shlex.split(command))
        except SystemExit as done:
            if done.code:
                raise
    return out.getvalue().strip("\n") + "\n"


def page() -> str:
    """Return the page with every example as it is printed now."""
    text = PATH.read_text(encoding="utf-8")

    def filled(block: re.Match[str]) -> str:
        lines = (line.rstrip() for line in printed(block[1]).splitlines())
        return "\n".join([f"```text\n$ roller {block[1]}", *lines, "```\n"])

    return _BLOCK.sub(filled, text)


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
