"""The same rows wherever values are equal: what is constructed must not depend on the processor."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roller.core.smallest_positions import smallest_positions


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 45))
def test_of_equal_values_the_first_ones_count(values, count):
    found = smallest_positions(np.array(values, float), count)
    assert found.tolist() == sorted(sorted(range(len(values)), key=lambda n: (values[n], n))[:count])
