"""Names of a graph or of a body of one, and what they are called in the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Scope:
    """Names of one graph or body, as the model spells them, to names of the whole.

    Parameters
    ----------
    names
        Name of the whole by local name.
    parent
        The graph or body around it.
    prefix
        Of names that are new in it.
    used
        Local names that something reads; outputs nothing reads are dropped.
    opsets
        Version by domain where they are not the model's: in definitions of operators.
    """

    names: dict[str, str] = field(default_factory=dict)
    parent: Scope | None = None
    prefix: str = ""
    used: set[str] = field(default_factory=set)
    opsets: Mapping[str, int] | None = None

    def version(self, domain: str, default: Mapping[str, int]) -> int:
        """Return the version of a domain's operators here; ``default`` holds the model's."""
        if self.opsets is None and self.parent is not None:
            return self.parent.version(domain, default)
        return (self.opsets or {}).get(domain, default.get(domain, 0))

    def find(self, name: str) -> str | None:
        """Return the name of the whole, ``None`` where nothing of that name is in sight."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.names.get(name)
            if found is not None:
                return found
            scope = scope.parent
        return None
