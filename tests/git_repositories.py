"""Git in repositories that tests make, with an author of its own and no configuration of the user's needed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_AUTHOR = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def git(folder: Path, *arguments: str) -> None:
    """Run a command of git in a folder."""
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, env={**os.environ, **_AUTHOR})


def commit_all(folder: Path) -> None:
    """Make a repository of a folder, and commit all its files."""
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
