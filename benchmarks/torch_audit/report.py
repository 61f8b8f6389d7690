"""The page of an audit."""
from __future__ import annotations
from typing import Any
def page(state: dict[str, Any]) -> str:
    """Return it."""
    return ""
