"""``roller lsp``: live profiles of training steps in an editor."""

from __future__ import annotations

from roller.errors import RollerError


def lsp_command() -> None:
    """Run a language server that shows time and memory of a training step beside its source in an editor.

    Editors start it and talk with it over standard input and output; docs/guides/editor.md has their settings. No code
    of a project runs until the editor asks for a profile.
    """
    try:
        from roller.server.lsp.language_server import serve_editor
    except ImportError as error:
        raise RollerError(
            f"lsp: expected the package {error.name}, got none. Install roller with the extra 'lsp', e.g. "
            f"pip install 'roller[lsp,serve,insight]'."
        ) from error
    serve_editor()
