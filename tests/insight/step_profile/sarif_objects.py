"""The objects of SARIF 2.1.0 that a log of roller's has: their properties, types, and which are required.

Written after "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", OASIS Standard, 27 March 2020
(https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/sarif-v2.1.0-os.html), sections 3.4 to 3.30 and 3.49. No object may
have properties but those named there; those that roller never writes are left out here, so one of them is a problem.
"""

import re
from urllib.parse import urlsplit

#: Type -> required properties, other properties (name -> type; a list holds items of its type), and alternatives of
#: which one has to be there.
OBJECTS = {
    "sarifLog": ({"version": "version", "runs": ["run"]}, {"$schema": "uri"}, ()),  # 3.13
    "run": ({"tool": "tool"}, {"results": ["result"]}, ()),  # 3.14
    "tool": ({"driver": "toolComponent"}, {}, ()),  # 3.18
    "toolComponent": (  # 3.19
        {"name": "text"}, {"rules": ["reportingDescriptor"], "informationUri": "uri", "version": "text"}, (),
    ),
    "reportingDescriptor": ({"id": "text"}, {"shortDescription": "multiformatMessageString"}, ()),  # 3.49
    "multiformatMessageString": ({"text": "text"}, {}, ()),  # 3.12
    "result": (  # 3.27
        {"message": "message"}, {"ruleId": "text", "level": "level", "locations": ["location"]}, (),
    ),
    "message": ({}, {"text": "text"}, ("text", "id")),  # 3.11
    "location": ({}, {"physicalLocation": "physicalLocation"}, ()),  # 3.28
    "physicalLocation": (  # 3.29
        {}, {"artifactLocation": "artifactLocation", "region": "region"}, ("artifactLocation", "address"),
    ),
    "artifactLocation": ({}, {"uri": "uri"}, ()),  # 3.4
    "region": ({}, {"startLine": "line"}, ()),  # 3.30
}  # fmt: skip
_PLAIN = {
    "text": lambda value: isinstance(value, str),
    "version": lambda value: value == "2.1.0",
    "level": lambda value: value in ("none", "note", "warning", "error"),
    "line": lambda value: type(value) is int and value >= 1,
    "uri": lambda value: isinstance(value, str)
    and bool(re.fullmatch(r"[\w:/?#\[\]@!$&'()*+,;=%.~-]*", value, re.ASCII))
    and not re.search("%(?![0-9A-Fa-f]{2})", value) and (not urlsplit(value).scheme or "://" in value),
}  # fmt: skip


def problems_of(value, kind="sarifLog", where="log"):
    """Return what a value has that its type does not allow, or lacks; a sentence each."""
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{where}: expected a list, got {value!r}"]
        return [one for n, item in enumerate(value) for one in problems_of(item, kind[0], f"{where}[{n}]")]
    if kind in _PLAIN:
        return [] if _PLAIN[kind](value) else [f"{where}: expected a {kind}, got {value!r}"]
    if not isinstance(value, dict):
        return [f"{where}: expected an object, got {value!r}"]
    required, others, one_of = OBJECTS[kind]
    found = [f"{where}: expected {name}, got none" for name in required if name not in value]
    if one_of and not any(name in value for name in one_of):
        found.append(f"{where}: expected one of {', '.join(one_of)}, got none")
    for name, inner in value.items():
        known = {**required, **others}.get(name)
        found += [f"{where}: no property {name}"] if known is None else problems_of(inner, known, f"{where}.{name}")
    return found
