"""Stops a script's Python code from writing files, using the network or starting processes, and records attempts.

Files that the script opens for writing, and folders that it makes, are redirected to this process's folder, where the
script finds them again. Any other attempt to write, connect or start a program raises ``PermissionError``, except that
``os.system`` returns the status of a missing command.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import multiprocessing.process
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

#: Python audit events of changes to files, with the positions of the paths among their arguments; ``open`` is handled
#: separately.
_CHANGES = {
    "os.remove": (0,), "os.rename": (0, 1), "os.rmdir": (0,), "os.link": (1,), "os.symlink": (1,), "os.truncate": (0,),
    "os.mkdir": (0,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,), "shutil.rmtree": (0,),
    "shutil.move": (0, 1),
}  # fmt: skip
#: Prefixes of audit events of code that reaches other machines or processes, or starts programs.
_OUTSIDE = (
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind", "subprocess.Popen",
    "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.kill",
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Functions of ``os`` that inspect a path.
_QUESTIONS = ("stat", "access", "listdir", "scandir")
#: Functions of ``os`` that change a path; allowed for files that the script made.
_OWN_CHANGES = ("chmod", "utime", "truncate", "remove", "unlink", "rmdir", "rename", "replace")
#: Paths that contain no files of the user.
_DEVICES = ("/dev/null", "/dev/shm", "/dev/tty", "/proc/self")


#: Exit status of a shell that does not find a command, as returned by ``os.system``.
_NOT_FOUND = 127 << 8


class BlockedOperationError(PermissionError):
    """The sandbox blocked an operation that a script attempted."""


class PythonSandbox:
    """Redirects or refuses a script's writes.

    Parameters
    ----------
    folder
        Folder in which this process may write.
    note
        Called with each blocked or redirected operation, e.g. ``"open log.txt"``.
    """

    def __init__(self, folder: str, note: Callable[[str], None]) -> None:
        self._folder, self._note = os.path.realpath(folder), note
        #: Path of a file or folder that the script made -> its actual location.
        self._made: dict[str, str] = {}
        self._open, self._mkdir = builtins.open, os.mkdir

    def install(self) -> None:
        """Start redirecting and refusing this process's operations."""

        @functools.wraps(self._open)
        def open_redirected(*args: Any, **kwargs: Any) -> Any:
            return self._open_redirected(*args, **kwargs)

        @functools.wraps(self._mkdir)
        def mkdir_redirected(*args: Any, **kwargs: Any) -> None:
            self._make_folder(*args, **kwargs)

        builtins.open = io.open = open_redirected
        os.system = self._stub_os_system
        os.mkdir = mkdir_redirected
        for name in (*_QUESTIONS, *_OWN_CHANGES):
            setattr(os, name, self._redirect_paths_of_function(getattr(os, name)))
        # A newly started process does not raise audit events.
        multiprocessing.process.BaseProcess.start = self._refuse_process_start  # type: ignore[method-assign, assignment]
        sys.addaudithook(self._audit)

    def _refuse_process_start(self) -> None:
        self._refuse("a process of multiprocessing")

    def _redirect_paths_of_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call_with_redirected_path(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            place = self._redirected_path(path)
            if place is None:
                return function(path, *args, **kwargs)
            if function.__name__ in ("rename", "replace") and args:
                args = (self._redirected_path(args[0]) or self._new_redirected_path(_resolved_path(args[0])), *args[1:])
            return function(place, *args, **kwargs)

        return call_with_redirected_path

    def _redirected_path(self, path: Any) -> str | None:
        """Return the redirected path of a file or folder that the script made, or of its contents, else ``None``."""
        if not self._made or not isinstance(path, (str, bytes, os.PathLike)):
            return None
        whole = outer = _resolved_path(path)
        while outer not in self._made:
            inner, outer = outer, os.path.dirname(outer)
            if inner == outer:
                return None
        place = self._made[outer] + whole[len(outer) :]
        return place if whole == outer or os.path.isdir(self._made[outer]) else None

    def _new_redirected_path(self, whole: str) -> str:
        place = self._made[whole] = os.path.join(self._folder, f"made{len(self._made)}")
        return place

    def _is_writable_path(self, path: Any) -> bool:
        if isinstance(path, int):
            return True
        whole = _resolved_path(path)
        return whole == self._folder or whole.startswith((self._folder + os.sep, *_DEVICES))

    def _open_redirected(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not isinstance(file, (int, str, bytes, os.PathLike)) or self._is_writable_path(file):
            return self._open(file, mode, *args, **kwargs)
        name, place = _resolved_path(file), self._redirected_path(file)
        if "x" in mode and os.path.exists(name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
        if place is None:
            if not set(mode) & set("wax+"):
                return self._open(file, mode, *args, **kwargs)
            self._note(f"open {os.path.basename(name)} for writing")
            exists, place = os.path.exists(name), self._new_redirected_path(name)
            if exists and "w" not in mode:  # appended to, or changed
                with self._open(name, "rb") as source, self._open(place, "wb") as target:
                    shutil.copyfileobj(source, target)
        return self._open(place, mode.replace("x", "w"), *args, **kwargs)

    def _make_folder(self, path: Any, *args: Any, **kwargs: Any) -> None:
        if not self._is_writable_path(path):
            name = _resolved_path(path)
            if os.path.exists(name):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            path = self._redirected_path(path) or self._new_redirected_path(name)
        self._mkdir(path, *args, **kwargs)

    def _audit(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, flags = given[0], given[2]
            if isinstance(flags, int) and flags & _WRITES and path is not None and not self._is_writable_path(path):
                self._refuse(f"open {_short_text(path)} for writing")
        elif event in _CHANGES:
            paths = [given[n] for n in _CHANGES[event] if n < len(given)]
            if not all(self._is_writable_path(path) for path in paths):
                self._refuse(f"{event} {_short_text(paths[0])}")
        elif event.startswith(_OUTSIDE):
            self._refuse(f"{event} {_short_text(given[1] if event == 'socket.connect' else given[0] if given else '')}")

    def _stub_os_system(self, command: Any) -> int:
        self._note(f"os.system {_short_text(command)}")
        return _NOT_FOUND

    def _refuse(self, what: str) -> None:
        self._note(what)
        raise BlockedOperationError(
            f"{what}: a script that is profiled may not change files, start programs or use the network"
        )


def _resolved_path(path: Any) -> str:
    """Return a path with symbolic links resolved; the path need not exist."""
    return os.path.realpath(os.fsdecode(path))


def _short_text(value: Any) -> str:
    return str(os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else value)[:60]
