"""``roller lsp``: live profiles of training steps in an editor."""

from __future__ import annotations

from roller.errors import RollerError


def lsp_command() -> None:
    """Serve an editor as a language server, on standard input and output: time and memory of a step beside its source.

    Editors start it; see the guide. No code of a project runs until the editor asks for a profile.
    """
    try:
        from roller.server.lsp.language_server import serve_editor
    except ImportError as error:
        raise RollerError(
            f"lsp: expected the package {error.name}, got none. Install roller with the extra 'lsp', e.g. "
            f"pip install 'roller[lsp,serve,insight]'."
        ) from error
    serve_editor()
