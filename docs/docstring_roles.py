"""Adapts docstrings to the site: roles (``:class:`Session```) become code, fields of named tuples attributes."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":[a-z]+:`~?([^`]+)`")
_PARAMETERS = re.compile(r"^Parameters\n-{10}$", re.MULTILINE)


class Roles(griffe.Extension):
    """Rewrites every docstring when it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Replace the roles of one object's docstring, and the section of a named tuple's fields."""
        del kwargs
        if obj.docstring is None:
            return
        obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
        # The signature of a named tuple is not in its source, and an unknown parameter is an error of the site.
        if isinstance(obj, griffe.Class) and any(str(base) == "NamedTuple" for base in obj.bases):
            obj.docstring.value = _PARAMETERS.sub("Attributes\n----------", obj.docstring.value)
