"""Changed files: the working tree against a commit, untracked files included."""

from __future__ import annotations

import subprocess
from pathlib import Path


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
    """Return the files of the working tree that differ from a commit; of a renamed file both names.

    The commit need not be an ancestor of the present one: what counts is the difference of the files.
    """
    commit = commit_of(revision, root)
    differing = git(root, "diff", "--name-only", "--no-renames", "-z", commit, "--").split("\0")
    untracked = git(root, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    return sorted({*differing, *untracked} - {""})


def is_ancestor(revision: str, root: Path) -> bool:
    """Return whether the present commit descends from another."""
    words = ["git", "merge-base", "--is-ancestor", revision, "HEAD"]
    return subprocess.run(words, cwd=root, capture_output=True, check=False).returncode == 0
