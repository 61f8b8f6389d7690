"""An edit that changes a document's batch size."""

from __future__ import annotations

from lsprotocol import types

from roller.errors import RollerError
from roller.server.batch_literal import BatchLiteral, NoBatchLiteral, find_batch_literal
from roller.server.lsp.positions import Encoding, position_at


class NoBatchError(RollerError):
    """Raised if the source has no literal batch size; ``found`` lists the candidates."""

    def __init__(self, text: str, found: NoBatchLiteral) -> None:
        super().__init__(text)
        self.found = found


def find_or_choose_batch_literal(name: str, text: str, constant: str = "") -> BatchLiteral:
    """Return the literal batch size or else the candidate named ``constant``; raise an error if there is neither."""
    found = find_batch_literal(text)
    if isinstance(found, BatchLiteral):
        return found
    chosen = next((one for one in found.candidates if one.name == constant), None)
    if chosen is not None:
        return chosen
    others = ", ".join(one.name for one in found.candidates)
    raise NoBatchError(f"{name}:{found.line}: {found.text}" + (f" Or name one of {others}." if others else ""), found)


def batch_edit(
    uri: str, version: int | None, text: str, literal: BatchLiteral, batch: int, encoding: Encoding, versioned: bool
) -> types.WorkspaceEdit:  # fmt: skip
    """Return the workspace edit that replaces a batch literal by ``batch``."""
    where = types.Range(position_at(text, literal.start, encoding), position_at(text, literal.end, encoding))
    edit = types.TextEdit(where, str(batch))
    if not versioned:
        return types.WorkspaceEdit(changes={uri: [edit]})
    document = types.OptionalVersionedTextDocumentIdentifier(uri, version)
    return types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(document, [edit])])
