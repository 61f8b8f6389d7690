"""What the tests of the documentation read of a Markdown page: fenced blocks, headings and links.

A fenced block of Python or of a shell is run, unless its title says otherwise, where the reader sees it too::

    ```sh title="Takes a minute"
    ```sh title="Needs a GPU"

"Takes ..." is left to ``make slow``; of "Needs ..." only the form is checked: that Python compiles, that every verb and
option of a command is there.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Every page that somebody reads. Reports of measurements have tables and no blocks.
PAGES = tuple(
    sorted(p for p in (*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "benchmarks" / "README.md") if p.is_file())
)
#: Languages whose blocks are run; those of data are parsed, and `text` is what a command prints.
RUN = ("python", "sh")
#: Settings of editors, in their own languages.
EDITORS = ("lua", "elisp")
LANGUAGES = (*RUN, "yaml", "json", "toml", "text", *EDITORS)

_TITLE = re.compile(r'title="([^"]*)"')
_HTML_LINK = re.compile(r'(?:href|src|srcset)="([^"]+)"')
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block; ``line`` is that of its first line of text, counted from 1."""

    page: Path
    line: int
    language: str
    title: str
    text: str

    @property
    def place(self) -> str:
        """``docs/page.md:12``."""
        return f"{name_of(self.page)}:{self.line}"

    @property
    def takes_long(self) -> bool:
        return self.title.startswith("Takes ")

    @property
    def is_not_run(self) -> bool:
        return self.title.startswith("Needs ")

    def commands(self) -> Iterator[list[str]]:
        """Return the words of every command of a shell block; comments, and backslashes at ends of lines, are gone."""
        for line in self.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def tokens_of(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(_COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text))


def blocks_of(page: Path) -> list[Block]:
    found = []
    for token in tokens_of(page.read_text(encoding="utf-8")):
        if token.type == "fence":
            language, _, rest = token.info.strip().partition(" ")
            title = _TITLE.search(rest)
            found.append(Block(page, token.map[0] + 2, language, title[1] if title else "", token.content))
    return found


@cache
def links_of(page: Path) -> list[str]:
    """Return the targets of all links and pictures, those of HTML too."""
    found = []
    for token in tokens_of(page.read_text(encoding="utf-8")):
        for part in (token, *(token.children or ())):
            if part.type in ("html_block", "html_inline"):
                found += _HTML_LINK.findall(part.content)
            found += [str(part.attrs[key]) for key in ("href", "src") if key in part.attrs]
    return found


@cache
def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site name them."""
    tokens = tokens_of(page.read_text(encoding="utf-8"))
    anchors: set[str] = set()
    for opening, inline in itertools.pairwise(tokens):
        if opening.type != "heading_open":
            continue
        text = "".join(c.content for c in inline.children or () if c.type in ("text", "code_inline"))
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = next(n for n in range(len(tokens)) if (f"{slug}-{n}" if n else slug) not in anchors)
        anchors.add(f"{slug}-{count}" if count else slug)
    return anchors
