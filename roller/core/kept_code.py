"""Libraries that are kept and loaded as code: whoever could have written them is known, and so is that they are whole.

A library that was cut short kills the process that maps it (SIGBUS), and one that somebody else wrote runs their code.
So a folder of them is this user's alone, each file carries a checksum, and what was verified is what is loaded.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import stat
import warnings
from pathlib import Path

from roller.core.files import private_folder, whole_file
from roller.errors import RollerWarning

_SUM_BYTES = hashlib.sha256().digest_size
#: Where a cache folder has libraries beside its kernels: the runner of models, and what the emulator runs.
_FOLDERS = ("runner", "emulator")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(PermissionError):
    """Somebody else may have written a file or folder whose content would run."""

    def __init__(self, path: str | os.PathLike[str], why: str) -> None:
        super().__init__(errno.EPERM, why, os.fspath(path))


def strangers(state: os.stat_result) -> str | None:
    """Return who else may have written a file or folder, in words; ``None`` where only this user and root can.

    A group that has its user's name and nobody else in it is that user: many systems give each user one, and let it
    write what the user makes.
    """
    if not hasattr(os, "geteuid"):
        return None
    me = os.geteuid()
    if state.st_uid not in (me, 0):
        return f"one of another user (number {state.st_uid})"
    others = state.st_mode & _OTHERS_WRITE
    if others & stat.S_IWOTH or (others and not _is_group_of(me, state.st_gid)):
        return f"one that others can write (mode {stat.S_IMODE(state.st_mode):03o})"
    return None


def _is_group_of(user: int, group: int) -> bool:
    """Whether a group has one member, its user; that of root is taken for no such group, as containers share it."""
    if user == 0:
        return False
    try:
        import grp
        import pwd

        owner, found = pwd.getpwuid(user), grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    return owner.pw_gid == group and found.gr_name == owner.pw_name and set(found.gr_mem) <= {owner.pw_name}


def check_folder(folder: Path) -> None:
    """Refuse a folder that others can write; one that is not there yet is nobody's."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        why = strangers(os.stat(folder))
        if why is not None:
            raise UntrustedError(folder, why)


def own_folder(folder: Path) -> Path:
    """Return a folder that this user alone writes, made where it is missing; see :func:`check_folder`."""
    private_folder(folder)
    check_folder(folder)
    return folder


def read_kept(path: Path) -> bytes:
    """Return what :func:`write_kept` wrote: the bytes that were verified, not the file, which may change meanwhile."""
    # A pipe of that name would be waited for.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise UntrustedError(path, "something that is no file")
        why = strangers(state)
        if why is not None:
            raise UntrustedError(path, why)
        data = file.read()
    image, found = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if hashlib.sha256(image).digest() != found:
        raise ValueError(f"checksum of {path.name[:12]} does not match ({len(data)} bytes)")
    return image


def write_kept(path: Path, image: bytes) -> None:
    """Keep a library with its checksum, whole or not at all, writable by nobody else."""
    with whole_file(path, mode=0o600) as file:
        file.write(image + hashlib.sha256(image).digest())


def kept(path: Path) -> bytes | None:
    """Return a library that is kept, ``None`` where it is to be built; a damaged one is said once and replaced."""
    try:
        return read_kept(path)
    except ValueError as err:
        _warn(f"{path}: a library in the cache was damaged ({err}). It is built again.")
    except UntrustedError as err:
        _warn(f"{path}: expected a library that only you can write, got {err.strerror}. It is built again.")
    except OSError:
        pass
    return None


def refused(err: OSError) -> None:
    """Say once that a folder is not used, and what to do."""
    if isinstance(err, UntrustedError):
        _warn(refusal(err))


def refusal(err: UntrustedError) -> str:
    """Return the words for a folder that somebody else may have written."""
    return (
        f"{err.filename}: expected a cache that only you can write, got {err.strerror}. What lies there runs as code, "
        "so it is not used: take the right from others (chmod go-w), or set ROLLER_CACHE_DIR to a folder of your own."
    )


@functools.cache
def _warn(text: str) -> None:
    warnings.warn(text, RollerWarning, stacklevel=3)


def clear_kept(cache: Path) -> None:
    """Remove all libraries of a cache folder, also what a killed process left of one."""
    for name in _FOLDERS:
        for path in (cache / name).glob("*"):
            with contextlib.suppress(OSError):
                path.unlink()
