"""Changed files: the working tree against a commit, untracked files included."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

#: Modules whose docstrings no program reads: not those of commands (help texts), rules (explanations), operators and
#: what-ifs (tests of them), nor modules that name ``__doc__``.
_TEXT_IS_NO_CODE = re.compile(r"roller(_runtime/|/(?!cli/|ops/|tile/alignment|insight/whatif/whatifs/)).*\.py")


class SelectionError(Exception):
    """Why no tests can be selected, in words for who asked."""


class UnknownRevision(SelectionError):
    """A revision that git does not know."""


class UnreadableFile(SelectionError):
    """A file of the checkout that is no Python, or no text."""


def git(root: Path, *words: str) -> str:
    """Return what git prints; raise :class:`subprocess.CalledProcessError` where it fails."""
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout


def commit_of(revision: str, root: Path) -> str:
    """Return the full hash of a commit.

    Raises
    ------
    UnknownRevision
        Where git knows none.
    """
    try:
        return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
    except subprocess.CalledProcessError:
        raise UnknownRevision(f"git knows no commit {revision!r}. Pass a commit of this repository.") from None


def changed_since(revision: str, root: Path) -> list[str]:
    """Return the files of the working tree that differ from a commit, with both names of a renamed file.

    The commit need not be an ancestor of the present one: only the difference of the files counts. For a module in
    which only docstrings and comments differ, return ``file::doctests`` if it has examples, and nothing otherwise.
    """
    commit = commit_of(revision, root)
    differing = git(root, "diff", "--name-only", "--no-renames", "-z", commit, "--").split("\0")
    untracked = git(root, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    found = []
    for path in sorted({*differing, *untracked} - {""}):
        if not _differs_in_text_only(path, commit, root):
            found.append(path)
        elif ">>>" in (root / path).read_text(encoding="utf-8"):
            found.append(f"{path}::doctests")
    return found


def is_ancestor(revision: str, root: Path) -> bool:
    """Return whether the present commit descends from another."""
    words = ["git", "merge-base", "--is-ancestor", revision, "HEAD"]
    return subprocess.run(words, cwd=root, capture_output=True, check=False).returncode == 0


def _differs_in_text_only(path: str, commit: str, root: Path) -> bool:
    if not _TEXT_IS_NO_CODE.fullmatch(path) or not (root / path).is_file():
        return False
    try:
        before, now = git(root, "show", f"{commit}:{path}"), (root / path).read_text(encoding="utf-8")
        return "__doc__" not in now and _code_without_docstrings(before) == _code_without_docstrings(now)
    except (subprocess.CalledProcessError, SyntaxError, UnicodeDecodeError):
        return False


def _code_without_docstrings(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            node.body[0] = ast.Pass()
    return ast.dump(tree)
