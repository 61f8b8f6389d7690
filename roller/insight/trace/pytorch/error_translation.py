"""Translates exceptions that a user's model, entry file or script raises while it is traced."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from roller.errors import ModelError, RollerError, shown
from roller.insight.trace.pytorch import unsupported_wrappers
from roller.insight.trace.pytorch.operator_origin import OriginTracker


@contextmanager
def translate_errors(what: str, origins: OriginTracker) -> Iterator[None]:
    """Translate any exception in a model to a ``ModelError`` that names the user's line."""
    try:
        yield
        if origins.stopped is not None:
            raise origins.stopped
    except RollerError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code, or PyTorch's in it; it may end all, too
        if origins.stopped is not None:
            raise origins.stopped from None
        frames = traceback.extract_tb(error.__traceback__)
        own = next((f for f in reversed(frames) if not origins.stacks.is_foreign(f.filename)), None)
        line = "" if own is None else f" at {origins.stacks.file_name_for_messages(own.filename)}:{own.lineno}"
        wrapped = unsupported_wrappers.explain_wrapper_error(error, line)
        if wrapped is not None:
            raise wrapped from None
        text = str(error).strip().splitlines()
        if text and "does not support bfloat16" in text[0]:  # autocast's message below compute capability 8.0
            raise ModelError(
                f"trace: amp: expected fp16 or fp32, got bf16{line}: the device has no bfloat16 of its own, and what "
                "PyTorch emulates is not priced. Use float16, or a device of compute capability 8.0 or later."
            ) from None
        if isinstance(error, SyntaxError) and error.filename and not origins.stacks.is_foreign(error.filename):
            where = f"{origins.stacks.file_name_for_messages(error.filename)}:{error.lineno or 1}"
            raise ModelError(
                f"trace: expected Python at {where}, got {type(error).__name__}: {error.msg} ({what}). "
                "Correct that line."
            ) from None
        if isinstance(error, ModuleNotFoundError):
            raise ModelError(
                f"trace: expected packages that are installed here, got none called {shown(error.name)}{line} "
                f"({what}). Install it, or leave it out."
            ) from None
        if isinstance(error, NameError):
            said = text[0] if text else "no message"
            raise ModelError(
                f"trace: expected defined names, got NameError{line}: {said} ({what}). Define or import it."
            ) from None
        raise ModelError(
            f"trace: expected a model that runs on shapes, got {type(error).__name__}{line}: "
            f"{text[0] if text else 'no message'} ({what}). Run the step once on the CPU; if it works there, "
            f"let no shape depend on the values of tensors."
        ) from None
