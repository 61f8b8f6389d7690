"""``roller lsp``: live profiles of training steps in an editor."""

from __future__ import annotations

from roller.errors import RollerError


def lsp_command() -> None:
    """Run a language server that shows the time and memory of a training step beside its source in an editor.

    Editors start it and communicate over standard input and output; docs/guides/editor.md lists their settings. No
    project code runs until the editor requests a profile.
    """
    try:
        from roller.server.lsp.language_server import serve_editor
    except ImportError as error:
        raise RollerError(
            f"lsp: expected the package {error.name}, got none. Install roller with the extra 'lsp', e.g. "
            f"pip install 'roller[lsp,serve,insight]'."
        ) from error
    serve_editor()
