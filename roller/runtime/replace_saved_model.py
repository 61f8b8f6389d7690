"""Replaces a model saved by roller with a new one, and nothing else.

The two folders are exchanged atomically if the system supports that (``renameat2``). Otherwise, the old one is first
renamed to a name that a later run finds, so that nothing is lost if the process is killed in between.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from roller.errors import ArtifactError
from roller.runtime.cache_lock import file_lock
from roller.runtime.container_kinds import MODEL_BUNDLE
from roller_runtime.core.files import check_folder_writable, read_text
from roller_runtime.storage.verified_container import SAVED, check_folder_name, check_output_folder

_LOG = logging.getLogger(__name__)

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextmanager
def replace_model_folder(folder: Path, force: bool) -> Iterator[Path]:
    """Yield the path at which to write a model for ``folder``; if ``force``, it replaces a model saved by roller."""
    # The old model stays until the new one is complete, and also if anything fails.
    check_replaceable(folder, force)
    folder = folder.resolve()
    if not force:
        yield folder
        return
    with ExitStack() as held:
        try:
            held.enter_context(file_lock(_sibling_path(folder, "lock"), wait=False))
        except BlockingIOError as err:
            raise ArtifactError(f"{folder}: another process is replacing it. Wait, or choose another one.") from err
        except OSError as err:
            raise ArtifactError(f"{folder}: cannot be locked ({err.strerror}). Choose another folder.") from err
        _recover_interrupted_swap(folder)
        if is_occupied(folder):
            yield from _write_and_swap(folder)
        else:
            yield folder


def _write_and_swap(folder: Path) -> Iterator[Path]:
    check_replaceable(folder, force=True)
    stage = _sibling_path(folder, "new")
    _check_staging_folder(stage)
    _remove_or_warn(stage)
    new = stage / folder.name
    try:
        stage.mkdir()
        yield new
        _swap(new, folder)
    finally:
        if not _sibling_path(folder, "earlier").exists():  # otherwise both versions are kept, as the error reports
            _remove_or_warn(stage)


def _check_staging_folder(stage: Path) -> None:
    """Raise an error if the staging folder contains anything but leftovers from a killed run."""
    # Leftovers are at most a folder named like the model: complete, or partly written by write_container.
    if not os.path.lexists(stage):
        return
    name = stage.name.removeprefix(".").removesuffix(".new")
    ours = stage.is_dir() and not stage.is_symlink()
    if not ours or any(p.name != name and not p.name.startswith(f".{name}.") for p in stage.iterdir()):
        raise ArtifactError(f"{stage}: expected nothing, or what an interrupted run left, got something else. Move it.")


def _swap(new: Path, folder: Path) -> None:
    """Put ``new`` in place of ``folder`` and remove the old folder."""
    try:
        check_replaceable(folder, force=True)  # another process may have written there meanwhile
        shutil.copymode(folder, new)
        if _exchange_atomically(new, folder):
            earlier = new
            try:
                check_replaceable(earlier, force=True)
            except ArtifactError:
                _exchange_atomically(new, folder)
                raise
        else:
            earlier = _sibling_path(folder, "earlier")
            _swap_by_renames(new, folder, earlier)
        _remove_or_warn(earlier)
    except OSError as err:
        raise ArtifactError(f"{folder}: cannot be replaced ({err.strerror}). Choose another folder.") from err


def _swap_by_renames(new: Path, folder: Path, earlier: Path) -> None:
    """Put ``new`` in place of ``folder`` in two renames; undo the first if the second fails."""
    os.replace(folder, earlier)
    try:
        check_replaceable(earlier, force=True)
        os.replace(new, folder)
    except BaseException as failed:
        try:
            os.replace(earlier, folder)
        except OSError as err:
            kept = f"The earlier model is kept in {earlier}, the new one in {new}"
            raise ArtifactError(f"{folder}: another process wrote there meanwhile. {kept}: move them.") from err
        if isinstance(failed, OSError):
            raise ArtifactError(f"{folder}: cannot be replaced ({failed.strerror}). Choose another folder.") from failed
        raise


def _recover_interrupted_swap(folder: Path) -> None:
    """Undo the first rename of a run that was killed between its two renames."""
    earlier = _sibling_path(folder, "earlier")
    if not earlier.exists():
        return
    if is_occupied(folder):
        if unlisted_files(folder) == [] and unlisted_files(earlier) == []:
            _remove_or_warn(earlier)
        return
    try:
        os.replace(earlier, folder)
    except OSError as err:
        raise ArtifactError(f"{folder}: its earlier model is in {earlier} ({err.strerror}). Move it back.") from err


def _exchange_atomically(one: Path, other: Path) -> bool:
    """Exchange two folders atomically; return whether the system and the file system support that."""
    call = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    if call is None:
        return False
    done = call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE))
    return bool(done == 0)


def _sibling_path(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


def _remove_or_warn(folder: Path) -> None:
    """Remove a folder that roller wrote; log a warning if it cannot be removed."""
    if folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as err:
            _LOG.warning("%s: could not be removed (%s). Remove it.", folder, err.strerror)


def check_replaceable(folder: Path, force: bool) -> None:
    """Raise an error unless a folder is empty, or may be replaced and contains only roller's files."""
    try:
        _check_replaceable(folder, force)
    except OSError as err:
        raise ArtifactError(f"{folder}: cannot write ({err.strerror}). Choose another folder.") from err


def _check_replaceable(folder: Path, force: bool) -> None:
    whole = folder.resolve()
    if Path.cwd().is_relative_to(whole):
        raise ArtifactError(f"{folder}: expected a folder, got the current one or one above. Choose another folder.")
    check_folder_name(whole)
    if not is_occupied(folder):
        check_output_folder(whole)
        return
    others = unlisted_files(folder)
    if others is None:
        raise ArtifactError(f"{folder}: exists, and is no folder that roller wrote. Choose another folder.")
    if not force:
        raise ArtifactError(f"{folder}: exists and is not empty. Add --force to replace it, or choose another folder.")
    if others:
        raise ArtifactError(f"{folder}: holds '{others[0]}', which roller did not write there. Move it away, or choose "
                            "another folder.")  # fmt: skip
    check_folder_writable(whole.parent)


def is_occupied(folder: Path) -> bool:
    """Return whether the path exists and is not an empty folder."""
    return folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir())))


def unlisted_files(folder: Path) -> list[str] | None:
    """Return the files in a folder that its manifest does not list; ``None`` if it is not a saved model."""
    if folder.is_symlink() or not folder.is_dir():
        return None
    for kind in (SAVED, MODEL_BUNDLE):
        path = folder / kind.manifest
        if not path.is_file() or path.is_symlink():
            continue
        try:
            body = json.loads(read_text(path))
            if body["format"] != kind.format:
                return None
            known = {kind.manifest, *kind.files(body)}
            parents = {p.as_posix() for text in known for p in Path(text).parents}
        except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
            return None
        found = ((p, p.relative_to(folder).as_posix()) for p in sorted(folder.rglob("*")))
        return [text for p, text in found if not _is_listed(p, text, known, parents)]
    return None


def _is_listed(path: Path, name: str, known: set[str], parents: set[str]) -> bool:
    """Return whether a path is a known file or a parent of one; links and pipes do not count."""
    if path.is_symlink():
        return False
    return (name in known and path.is_file()) or (name in parents and path.is_dir())
