"""What errors repeat of what they were given is bounded, wherever they are raised."""

import pickle

import pytest

import roller
from roller import ops
from roller.errors import NoCandidateError, RollerError, UnsupportedError, bounded, shown
from tests.offenders import every

LONG = "x" * 100_000
#: A word of 512 characters, what stands around it, and what is left out of it.
MOST = 1500


@every(
    "call",
    [
        lambda: ops.parse(f"matmul(4, 4, 4, {LONG}=1)"),
        lambda: ops.parse(LONG),
        lambda: ops.elementwise("relu", (LONG,)),
        lambda: ops.elementwise(f"{LONG}(3)", (3,)),
        lambda: ops.elementwise("relu", (3,), dtype=LONG),
        lambda: ops.reduce(LONG, (3,)),
        lambda: ops.matmul(10**5000, 3, 3),
        lambda: ops.reduce("sum", (3, 3), axes=10**5000),
        lambda: ops.matmul(4, 4, 4, epilogue=LONG),
        lambda: roller.construct(ops.matmul(4, 4, 4), device=LONG),
        lambda: roller.construct(ops.matmul(4, 4, 4), device="v100", top_k=LONG),
        lambda: roller.compile(ops.matmul(4, 4, 4), device="v100", constants={LONG: 1}),
        lambda: roller.load(LONG),
    ],
)
def test_an_error_repeats_no_megabytes(call):
    with pytest.raises(RollerError) as caught:
        call()
    assert len(str(caught.value)) < MOST


def test_the_remedy_at_the_end_is_kept():
    text = str(RollerError("where: expected few, got " + "1, " * 100_000 + "that is. Use fewer."))
    assert len(text) < 9000 and text.startswith("where: expected few") and text.endswith("Use fewer.")


def test_bounding_twice_changes_nothing_and_errors_travel_between_processes():
    once = bounded(LONG)
    assert bounded(once) == once
    err = pickle.loads(pickle.dumps(UnsupportedError(LONG, "m", ("a 'n': why",))))
    assert (str(err), err.nodes) == (once, ("a 'n': why",))
    assert str(NoCandidateError("short")) == "short"


def test_integers_beyond_printing_are_shown_by_their_size():
    assert shown(10**5000) == "an integer of 16610 bits"
    assert shown((3, 10**5000)) == "(3, an integer of 16610 bits)" and shown([True]) == "[True]"
