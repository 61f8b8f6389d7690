"""Runs a function of a forked process in a new thread, which has a pool of workers of its own for kernels.

A fork copies only the calling thread. If that thread had run kernels, its workers are missing in the forked process.
TVM waits for the missing workers before it replaces them, and this wait never ends if one slept during the fork.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Stack of the thread in bytes: compilers recurse, and some systems give threads far less than the main thread.
_STACK_BYTES = 64 << 20


def run_in_new_thread(act: Callable[[], T]) -> T:
    """Run ``act`` in a new thread; return its result or raise its exception. The thread may outlast this call.

    Examples
    --------
    >>> run_in_new_thread(threading.current_thread) is threading.current_thread()
    False
    """
    context, results, errors, done = contextvars.copy_context(), list[T](), list[BaseException](), threading.Event()

    def work() -> None:
        try:
            results.append(context.run(act))
        except BaseException as err:  # noqa: BLE001 - raised again by the caller
            errors.append(err)
        # The thread's workers poll for 0.1 s or more before they see that it ends; the process may end before that.
        done.set()

    usual, thread = threading.stack_size(_STACK_BYTES), threading.Thread(target=work, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # there is no memory for it
        work()
    finally:
        threading.stack_size(usual)
    done.wait()
    if errors:
        raise errors[0]
    return results[0]
