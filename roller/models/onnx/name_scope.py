"""Scopes, which map the local names of a graph or body to unique names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Scope:
    """A mapping from the local names of one graph or body to unique names.

    Parameters
    ----------
    names
        Unique name by local name.
    parent
        The enclosing graph or body.
    prefix
        Prefix of new names.
    used
        Local names that are read; other outputs are dropped.
    opsets
        Operator set versions by domain if they differ from the model's, as in operator definitions.
    """

    names: dict[str, str] = field(default_factory=dict)
    parent: Scope | None = None
    prefix: str = ""
    used: set[str] = field(default_factory=set)
    opsets: Mapping[str, int] | None = None

    def version(self, domain: str, default: Mapping[str, int]) -> int:
        """Return the operator set version of a domain in this scope; ``default`` contains the model's versions."""
        if self.opsets is None and self.parent is not None:
            return self.parent.version(domain, default)
        return (self.opsets or {}).get(domain, default.get(domain, 0))

    def find(self, name: str) -> str | None:
        """Return the unique name of a local or outer name; ``None`` if there is none."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.names.get(name)
            if found is not None:
                return found
            scope = scope.parent
        return None
