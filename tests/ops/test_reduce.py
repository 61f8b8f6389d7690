"""Positions of extremes where no element equals the extreme."""

from __future__ import annotations

import numpy as np

from roller import ops


def test_the_position_of_what_is_no_number_is_its_own():
    x = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan], [2.0, 5.0, 5.0]], np.float32)
    (found,) = ops.reduce("argmax", (3, 3), 1).evaluate([x])
    assert found.tolist() == np.argmax(x, axis=1).tolist() == [1, 0, 1]
    (flat,) = ops.reduce("argmax", (3, 3)).evaluate([x])
    assert flat == np.argmax(x)
