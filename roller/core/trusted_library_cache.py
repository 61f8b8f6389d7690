"""Cached shared libraries, loaded only if they are intact and no other user could have written them.

A truncated library kills the process that maps it (SIGBUS), and a foreign library runs foreign code. Therefore, the
folder is private to the user, every file has a checksum, and the verified bytes are the bytes that are loaded.
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

from roller.errors import RollerWarning
from roller_runtime.core.files import make_private_folder, write_atomically

_SUM_BYTES = hashlib.sha256().digest_size
#: Subfolders of the cache with libraries: the model runner's and the emulator's.
_FOLDERS = ("runner", "emulator")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedFileError(PermissionError):
    """Another user may have written a file or folder whose contents would be run."""

    def __init__(self, path: str | os.PathLike[str], why: str) -> None:
        super().__init__(errno.EPERM, why, os.fspath(path))


def describe_foreign_writers(state: os.stat_result) -> str | None:
    """Describe who else may have written a file or folder; return ``None`` if only this user and root could."""
    if not hasattr(os, "geteuid"):
        return None
    me = os.geteuid()
    if state.st_uid not in (me, 0):
        return f"one of another user (number {state.st_uid})"
    others = state.st_mode & _OTHERS_WRITE
    if others & stat.S_IWOTH or (others and not _is_private_group_of(me, state.st_gid)):
        return f"one that others can write (mode {stat.S_IMODE(state.st_mode):03o})"
    return None


def _is_private_group_of(user: int, group: int) -> bool:
    """Return whether the group is the user's private group; root's group is not, because containers share it."""
    if user == 0:
        return False
    try:
        import grp
        import pwd

        owner, found = pwd.getpwuid(user), grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    return owner.pw_gid == group and found.gr_name == owner.pw_name and set(found.gr_mem) <= {owner.pw_name}


def check_folder_trusted(folder: Path) -> None:
    """Raise an error if other users can write to the folder; a missing folder passes."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        why = describe_foreign_writers(os.stat(folder))
        if why is not None:
            raise UntrustedFileError(folder, why)


def make_trusted_folder(folder: Path) -> Path:
    """Return a folder that only this user can write to; create it if it is missing."""
    make_private_folder(folder)
    check_folder_trusted(folder)
    return folder


def read_verified_library(path: Path) -> bytes:
    """Return the library written by :func:`write_library_with_checksum`, after verifying owner and checksum."""
    # O_NONBLOCK: opening a pipe of that name must not block.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise UntrustedFileError(path, "something that is no file")
        why = describe_foreign_writers(state)
        if why is not None:
            raise UntrustedFileError(path, why)
        data = file.read()
    image, found = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if hashlib.sha256(image).digest() != found:
        raise ValueError(f"checksum of {path.name[:12]} does not match ({len(data)} bytes)")
    return image


def write_library_with_checksum(path: Path, image: bytes) -> None:
    """Write a library with its checksum, atomically and with mode 0600."""
    with write_atomically(path, mode=0o600) as file:
        file.write(image + hashlib.sha256(image).digest())


def load_cached_library(path: Path) -> bytes | None:
    """Return a cached library, or ``None`` if it must be built; warn once about a damaged or untrusted one."""
    try:
        return read_verified_library(path)
    except ValueError as err:
        _warn_once_per_text(f"{path}: a library in the cache was damaged ({err}). It is built again.")
    except UntrustedFileError as err:
        _warn_once_per_text(
            f"{path}: expected a library that only you can write, got {err.strerror}. It is built again."
        )
    except OSError:
        pass
    return None


def warn_untrusted_folder(err: OSError) -> None:
    """Warn once that a folder is not used because others can write to it."""
    if isinstance(err, UntrustedFileError):
        _warn_once_per_text(refusal(err))


def refusal(err: UntrustedFileError) -> str:
    """Return the message for a folder that another user may have written."""
    return (
        f"{err.filename}: expected a cache that only you can write, got {err.strerror}. What lies there runs as code, "
        "so it is not used: take the right from others (chmod go-w), or set ROLLER_CACHE_DIR to a folder of your own."
    )


@functools.cache
def _warn_once_per_text(text: str) -> None:
    warnings.warn(text, RollerWarning, stacklevel=3)


def remove_cached_libraries(cache: Path) -> None:
    """Remove all libraries from a cache folder, including temporary files of killed processes."""
    for name in _FOLDERS:
        for path in (cache / name).glob("*"):
            with contextlib.suppress(OSError):
                path.unlink()
