"""Commands of the language server."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from roller.errors import RollerError, printable, shown
from roller.server.lsp.batch_size_edit import NoBatchError, batch_edit, find_or_choose_batch_literal
from roller.server.lsp.editor_session import EditorSession
from roller.server.lsp.editor_state import EditorState
from roller.server.lsp.number_texts import share_text, size_text, time_text
from roller.server.lsp.settings import parse_device_setting, parse_whole_number

#: Maximum number of children to list in a message.
_MOST_SAID = 8
#: Maximum length of a path in an error message, in characters.
_LONGEST_PATH = 80


class RefusedError(JsonRpcException):
    """Raised if a request cannot be fulfilled; the text gives the reason and the remedy."""

    CODE = -32803  # RequestFailed


Command = Callable[[LanguageServer, EditorState, tuple[Any, ...]], Awaitable[Any]]


def register_commands(server: LanguageServer, editor: EditorState) -> None:
    """Register the commands with a server; they act on the sessions of ``editor``."""
    for name, command in COMMANDS.items():
        _register(server, editor, name, command)


def _register(server: LanguageServer, editor: EditorState, name: str, command: Command) -> None:
    @server.command(name)
    async def run(ls: LanguageServer, *arguments: object) -> Any:
        try:
            return await command(server, editor, arguments)
        except NoBatchError as error:
            names = [one.name for one in error.found.candidates]
            raise RefusedError(str(error), data={"line": error.found.line, "candidates": names}) from None
        except RollerError as error:
            raise RefusedError(str(error)) from None


def text_parameter(params: Any, name: str) -> str:
    """Return a text parameter of a request; ``""`` if it is missing or no text."""
    value = getattr(params, name, None)
    return value if isinstance(value, str) else ""


def _checked_argument(
    where: str, arguments: tuple[Any, ...], number: int, kind: Any, words: str, default: Any = None
) -> Any:  # fmt: skip
    """Return a command's argument or the default; if it is no ``kind``, raise an error that begins with ``where``."""
    value = arguments[number] if number < len(arguments) else None
    if value is None:
        value = default
    if not isinstance(value, kind):
        raise RollerError(f"roller.{where}: expected {words}, got {shown(value)}.")
    return value


async def _profile(server: LanguageServer, editor: EditorState, arguments: tuple[Any, ...]) -> dict[str, Any]:
    found = await editor.profile(_checked_argument("profile: uri", arguments, 0, str, "the URI of an entry file", ""))
    return {"entry": found.project.entry_name, "options": found.session.options.to_data()}


async def _drill(server: LanguageServer, editor: EditorState, arguments: tuple[Any, ...]) -> dict[str, Any]:
    found = editor.session_of(_checked_argument("drill: uri", arguments, 0, str, "the URI of a file", ""))
    words = "a module's path, file:line, or a list of both"
    path = _checked_node_path(_checked_argument("drill: part", arguments, 1, (str, list, tuple), words, ""))
    says = _checked_argument("drill: says", arguments, 2, bool, "whether to show a message", False)
    if found.figures is None:
        raise RollerError(
            f"{found.project.entry_name}: expected a profile, got none yet. Wait for the running profile, or read the "
            f"file's errors."
        )
    nodes = found.figures.nodes_by_names(path)
    if not nodes:
        raise RollerError(
            f"{_path_text(path)}: expected a module or a line (file:line) of the profile, got another name. Use the "
            f"path of a child."
        )
    children = found.figures.children(path)
    answer = {
        "name": path[-1], "path": path, "wall_s": math.fsum(n.wall_s for n in nodes),
        "label": found.figures.profile.source,
        "held_bytes": sum(n.total_held_bytes for n in nodes), "children": children, "stale": found.is_stale,
    }  # fmt: skip
    if says:
        server.window_show_message(types.ShowMessageParams(types.MessageType.Info, _drill_text(found, answer)))
    return answer


def _checked_node_path(given: Any) -> list[str]:
    path = [given] if isinstance(given, str) else list(given)
    if not path or not all(isinstance(name, str) for name in path):
        raise RollerError(
            f"roller.drill: part: expected names from the step on, got {shown(given)}. Use the path of a child."
        )
    return path


def _path_text(path: Sequence[str]) -> str:
    text = " > ".join(" ".join(printable(name).split()) for name in path)
    return text if len(text) <= _LONGEST_PATH else text[:_LONGEST_PATH] + "..."


def _drill_text(found: EditorSession, answer: dict[str, Any]) -> str:
    rows = [
        f"{row['name']}: {time_text(row['wall_s'])} ({share_text(row['wall_s'], answer['wall_s']) or '-'}), "
        f"{size_text(row['held_bytes'])}"
        for row in answer["children"][:_MOST_SAID]
    ]
    rest = len(answer["children"]) - len(rows)
    rows += [f"and {rest} more"] if rest > 0 else []
    title = answer["name"] or found.project.entry_name
    stale = ", stale" if answer["stale"] else ""
    head = f"{title}: {time_text(answer['wall_s'])}, {size_text(answer['held_bytes'])}, {answer['label']}{stale}"
    return "\n".join([head, *rows])


async def _set_batch(server: LanguageServer, editor: EditorState, arguments: tuple[Any, ...]) -> dict[str, Any]:
    found = editor.session_of(_checked_argument("setBatch: uri", arguments, 0, str, "the URI of a file", ""))
    batch = parse_whole_number(arguments[1] if len(arguments) > 1 else None, "roller.setBatch: batch")
    constant = _checked_argument("setBatch: constant", arguments, 2, str, "the name of a constant", "")
    entry = found.project.entry_name
    text = editor.text_of_file(found, entry)
    if text is None:
        text = found.project.read(entry).text  # raises with the reason
    literal = find_or_choose_batch_literal(entry, text, constant)
    workspace = server.client_capabilities.workspace
    known = None if workspace is None else workspace.workspace_edit
    document = editor.open_document(found.project.entry)
    edit = batch_edit(
        editor.uri_of(found.project.entry), None if document is None else document.version, text, literal, batch,
        editor.encoding, known is not None and bool(known.document_changes),
    )  # fmt: skip
    said = await server.workspace_apply_edit_async(types.ApplyWorkspaceEditParams(edit, f"batch {batch}"))
    if not said.applied:
        why = f" ({said.failure_reason})" if said.failure_reason else ""
        raise RollerError(f"{entry}:{literal.line}: expected the editor to edit the batch, got no{why}. Try again.")
    return {"applied": True, "batch": batch, "before": literal.value, "line": literal.line}


async def _set_device(server: LanguageServer, editor: EditorState, arguments: tuple[Any, ...]) -> dict[str, Any]:
    found = editor.session_of(_checked_argument("setDevice: uri", arguments, 0, str, "the URI of a file", ""))
    given = arguments[1] if len(arguments) > 1 else None
    editor.set_devices(found, parse_device_setting(given, "roller.setDevice: devices"))
    return {"options": found.session.options.to_data()}


async def _set_live(server: LanguageServer, editor: EditorState, arguments: tuple[Any, ...]) -> dict[str, Any]:
    found = editor.session_of(_checked_argument("setLive: uri", arguments, 0, str, "the URI of a file", ""))
    found.session.set_live(_checked_argument("setLive: on", arguments, 1, bool, "true or false"))
    return {"live": found.session.is_live}


async def _show_page(server: LanguageServer, editor: EditorState, arguments: tuple[Any, ...]) -> dict[str, Any]:
    found = editor.session_of(_checked_argument("showPage: uri", arguments, 0, str, "the URI of a file", ""))
    page = await editor.start_or_get_page(found)
    host = _checked_argument("showPage: host", arguments, 1, str, "host:port, as the browser has it", "")
    if host:
        page.allow_host(host)
    return {"address": page.address}


COMMANDS: dict[str, Command] = {
    "roller.profile": _profile, "roller.drill": _drill, "roller.setBatch": _set_batch,
    "roller.setDevice": _set_device, "roller.setLive": _set_live, "roller.showPage": _show_page,
}  # fmt: skip
