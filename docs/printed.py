"""Write below every block of Python of a page what it prints, where a block ``text title="Prints"`` follows it.

    python docs/printed.py docs/tutorial.md

The blocks of a page run in their order in one namespace. A test holds every page to what its blocks print.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_PAIR = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text title=\"Prints\"\n(?P<said>.*?)```\n)?", re.DOTALL)


def printed(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Run the blocks of Python of a page; yield each with what it printed."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for found in _PAIR.finditer(text):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(found["code"], "page", "exec"), namespace)
        yield found, out.getvalue()


def with_printed(text: str) -> str:
    """Return a page with its blocks ``Prints`` as they are now."""
    parts, at = list[str](), 0
    for found, said in printed(text):
        if found["said"] is not None:
            parts += [text[at : found.start("said")], said]
            at = found.end("said")
    return "".join([*parts, text[at:]])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(with_printed(page.read_text(encoding="utf-8")), encoding="utf-8")
