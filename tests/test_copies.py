"""Kernels and sessions are copied and pickled, or refuse it in words."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import roller
from roller.errors import RollerError
from roller.models.compiled_model import CompiledModel
from roller_runtime.core.unpicklable import Unpicklable
from roller_runtime.session.cpu_session import Session
from roller_runtime.session.range_session import RangeSession
from roller_runtime.session.session_interface import ModelCalls
from tests.offenders import every

_WAYS = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickle.dumps}


@every("kind", [Session, RangeSession, CompiledModel])
@every("way", _WAYS)
def test_sessions_say_how_else(kind, way):
    assert issubclass(kind, Unpicklable) and "threads may share" in RangeSession.other_way
    made = object.__new__(kind)
    with pytest.raises(
        RollerError, match=rf"{kind.__name__}: expected what can be copied or pickled, .*(Save|Compile)"
    ):
        _WAYS[way](made)


def test_all_sessions_are_held_here():
    assert issubclass(ModelCalls, Unpicklable)


@pytest.mark.slow
def test_kernels():
    kernel = roller.compile(roller.ops.reduce("sum", (4, 8), 1), deterministic=True)
    x = np.ones((4, 8), np.float32)
    for other in (copy.copy(kernel), copy.deepcopy([kernel])[0], pickle.loads(pickle.dumps(kernel))):
        np.testing.assert_array_equal(other(x), kernel(x))
        assert other.source == kernel.source
    ranged = roller.compile(roller.ops.reduce("sum", (4, 8), 1), shapes={"d0": (1, 4)}, deterministic=True)
    assert copy.deepcopy(ranged) is ranged
    with pytest.raises(RollerError, match=r"bound to a range of sizes\. Compile it where it is needed"):
        pickle.dumps(ranged)
