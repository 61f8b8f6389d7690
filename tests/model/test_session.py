"""Sessions against the oracle of programs, and what they promise to callers."""

from __future__ import annotations

import numpy as np
import pytest

from roller.model.memory import plan
from roller.model.reference import evaluate_program
from roller.model.session import Session
from roller.model.steps import Program
from tests.model import programs

CASES = {
    "mlp": programs.mlp, "dense": programs.dense_block, "dense, batch 2": lambda: programs.dense_block(2),
    "lanes": programs.lanes, "mixed": programs.mixed,
}  # fmt: skip


@pytest.fixture(scope="module", params=[True, False], ids=["native", "python"])
def native(request) -> bool:
    return request.param


@pytest.fixture(scope="module", params=CASES)
def case(request, native) -> tuple[Program, Session]:
    program = CASES[request.param]()
    return program, Session(plan(program), programs.kernels(program), cores=2, native=native)


def test_outputs_are_those_of_the_oracle(case):
    program, session = case
    for seed in range(2):
        fed = programs.feeds(program, seed)
        wanted, found = evaluate_program(program, fed), session.run(fed)
        assert list(found) == list(dict.fromkeys(program.outputs))
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
