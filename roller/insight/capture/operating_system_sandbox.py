"""Lets the operating system deny this process network access and writes outside one folder, if supported.

Python hooks do not see writes from C++ or Rust (``torch.jit.save``, safetensors, SQLite); the operating system does.
Landlock (Linux 6.2 or later) restricts files, and a separate namespace restricts the network. Both restrictions also
apply to child processes and cannot be undone. They prevent accidents, but do not contain malicious programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

#: Numbers of Landlock's system calls, the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
#: A flag that requests the version, a rule for everything below a path, and the first version that supports truncation.
_ASK_VERSION, _PATH_BENEATH, _LEAST_VERSION = 1, 1, 3
#: Rights by their bits: to write a file, to make and remove files of each kind, to link, to truncate.
_WRITE_FILE, _MAKE_AND_REMOVE, _REFER, _TRUNCATE = 1 << 1, 0b1_1111_1111_0000, 1 << 13, 1 << 14
_ALL = _WRITE_FILE | _MAKE_AND_REMOVE | _REFER | _TRUNCATE
#: ``prctl``: no new privileges, which Landlock requires.
_NO_NEW_PRIVILEGES = 38
#: ``unshare``: a network namespace, and a user namespace, which lets anyone create a network namespace.
_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000
#: Paths that may be written outside the folder, and how: locks of multiprocessing are in ``/dev/shm``.
_OTHERS = (("/dev/shm", _ALL), ("/dev/null", _WRITE_FILE | _TRUNCATE))


def disconnect_from_network() -> bool:
    """Disconnect this process from the network permanently; return whether the operating system supports that.

    Call this function before threads start: an unprivileged process needs a user namespace, which the system grants
    only to a process with a single thread.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_NETWORK) == 0:
        return True
    if libc.unshare(_NEW_NETWORK | _NEW_USER) != 0:
        return False
    for name, text in (("uid_map", f"{user} {user} 1"), ("setgroups", "deny"), ("gid_map", f"{group} {group} 1")):
        with contextlib.suppress(OSError):  # the process then runs as the overflow user
            Path("/proc/self", name).write_text(text)
    return True


def limit_writes_to_folder(folder: str) -> bool:
    """Deny this process writes outside a folder permanently; return whether the operating system supports that."""
    return sys.platform.startswith("linux") and _limit_writes_with_landlock(ctypes.CDLL(None, use_errno=True), folder)


def _limit_writes_with_landlock(libc: ctypes.CDLL, folder: str) -> bool:
    if libc.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION) < _LEAST_VERSION:
        return False
    rules = libc.syscall(_CREATE_RULESET, ctypes.byref(ctypes.c_uint64(_ALL)), 8, 0)
    if rules < 0:
        return False
    try:
        for path, rights in ((folder, _ALL), *_OTHERS):
            if os.path.exists(path) and not _add_landlock_rule(libc, rules, path, rights):
                return False
        return bool(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 and libc.syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def _add_landlock_rule(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> bool:
    place = os.open(path, os.O_PATH)
    try:
        rule = rights.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)  # a packed structure
        return bool(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0) == 0)
    finally:
        os.close(place)
