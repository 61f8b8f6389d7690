"""Changes of files, by chance: bytes, spans, and, where a file has a structure, values within it, its sums made right.

What an accident does to a file, and what somebody does who wants its reader to fail.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import zipfile
from typing import Any

#: What takes the place of a value: of another kind, out of range, not finite, deep, long, or text that is a path.
_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 40, 1 << 70, -(1 << 63), 1e308, float("nan"), float("inf"), "", "\x1b[31m",
    "../../etc/passwd", "/dev/zero", "x" * 5000, [], {}, [[]] * 50, {"a": {"b": []}}, [1, "2", None], "0" * 400,
)  # fmt: skip


def mutated(data: bytes, name: str, rng: random.Random) -> bytes:
    """Return changed bytes of a file: one of three times within its structure, if its name says which it has."""
    inner = _STRUCTURES.get(name.rpartition(".")[2])
    if inner is not None and rng.random() < 0.6:
        try:
            return inner(data, rng)
        except (ValueError, OSError, tarfile.TarError, zipfile.BadZipFile):
            pass  # it has another structure than its name says
    return _bytes(data, rng)


def _bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    kind = rng.randrange(6)
    at = rng.randrange(len(out) or 1)
    end = min(len(out), at + rng.choice([1, 4, 64, 4096]))
    if kind == 0 and out:
        for _ in range(rng.choice([1, 1, 8])):
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del out[at:]
    elif kind == 2:
        del out[at:end]
    elif kind == 3:
        out[at:at] = out[at:end]
    elif kind == 4:
        out[at:end] = bytes(rng.randrange(256) for _ in range(end - at))
    else:
        out[at:end] = rng.choice([b"\x00", b"\xff"]) * (end - at)
    return bytes(out)


def _json(data: bytes, rng: random.Random) -> bytes:
    return json.dumps(_value(json.loads(data), rng)).encode()


def _value(root: Any, rng: random.Random) -> Any:
    """Change one value, or one key, anywhere below ``root``."""
    if not isinstance(root, (dict, list)) or not root or rng.random() < 0.1:
        return rng.choice(_ODD)
    keys = list(root) if isinstance(root, dict) else range(len(root))
    key = rng.choice(keys)
    chance = rng.random()
    if chance < 0.1:
        del root[key]
    elif chance < 0.15 and isinstance(root, dict):
        root[rng.choice(["", "__proto__", "x" * 300, "\x1b]0;x\x07"])] = root.pop(key)
    elif chance < 0.2 and isinstance(root, list):
        root.insert(key, root[rng.choice(keys)])
    else:
        root[key] = _value(root[key], rng)
    return root


def _gzip(data: bytes, rng: random.Random) -> bytes:
    inside = gzip.decompress(data)
    return gzip.compress(_json(inside, rng) if inside[:1] in b"[{" else _bytes(inside, rng), 1)


def _zip(data: bytes, rng: random.Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        chosen = rng.choice(old.namelist())
        for name in old.namelist():
            inside = old.read(name)
            title = name
            if name == chosen and rng.random() < 0.8:
                inside = mutated(inside, name, rng)
            elif name == chosen:
                title = rng.choice(["../" + name, "/tmp/" + name, "x" * 300, name])
            new.writestr(title, inside)
    return out.getvalue()


def _tar(data: bytes, rng: random.Random) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=out, mode="w") as new:
        members = old.getmembers()
        chosen = rng.choice(members)
        for member in members:
            inside = old.extractfile(member).read() if member.isfile() else b""
            if member is chosen:
                kind = rng.randrange(5)
                if kind < 3:
                    inside = mutated(inside, member.name, rng)
                elif kind == 3:
                    member.name = rng.choice(["../../x", "/tmp/x", "", "y" * 300, member.name + "\n"])
                else:
                    member.type, member.linkname = rng.choice([tarfile.SYMTYPE, tarfile.LNKTYPE]), "/etc/passwd"
                    inside = b""
            member.size = len(inside)
            new.addfile(member, io.BytesIO(inside))
    return out.getvalue()


_STRUCTURES = {"json": _json, "gz": _gzip, "npz": _zip, "zip": _zip, "tar": _tar}
