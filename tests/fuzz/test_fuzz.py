"""300 random cases of all generators, half of them in ``make test``.

And every case that ever failed, each in a child process; see :mod:`benchmarks.fuzz`.
"""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("tvm")

from tests.builds import builds_folder
from tests.fuzz.cases import GENERATORS, LIMITS, examined
from tests.fuzz.judge import load_all
from tests.fuzz.run import corpus, explore
from tests.fuzz.verdict import OK
from tests.fuzz.worker import Worker

#: Cases of each generator, the first half in ``make test``, and how many of them must be more than refused.
SHARES = {"expressions": (90, 30), "operators": (80, 30), "calls": (110, 40), "gpu": (12, 3), "onnx": (8, 1)}


@pytest.fixture(scope="module")
def worker():
    with Worker() as w, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLER_FUZZ_BUILDS", str(builds_folder()))
        yield w


def test_the_shares_name_every_generator_and_make_three_hundred_cases():
    load_all()
    assert set(SHARES) == set(GENERATORS)
    assert sum(count for count, _ in SHARES.values()) == 300


@pytest.mark.always
@pytest.mark.parametrize("generator", SHARES)
def test_random_cases(worker, generator):
    count, right = SHARES[generator]
    judged(worker, generator, range(1, count // 2 + 1), -(-right // 2))


@pytest.mark.slow
@pytest.mark.parametrize("generator", SHARES)
def test_further_random_cases(worker, generator):
    count, right = SHARES[generator]
    judged(worker, generator, range(count // 2 + 1, count + 1), -(-right // 2))


def judged(worker, generator, numbers, right):
    if generator == "gpu" and shutil.which("g++") is None:
        pytest.skip("the emulator builds kernels with g++, which is not installed")
    found = None
    for found in explore(worker, generator, numbers, seed=14, limits="quick"):  # noqa: B007
        pass
    assert found is not None
    shown = [f"{v.kind}: {v.message}\n{json.dumps(c)}" for c, v in found.cases.values()]
    assert not shown, "\n".join(shown)
    assert sum(found.verdicts.values()) == len(numbers), found.verdicts
    assert found.verdicts[OK] >= right, found.verdicts


@pytest.mark.parametrize("path", corpus(), ids=lambda p: p.stem)
def test_what_once_failed_is_right_or_refused_in_words(worker, path):
    if path.name.startswith("gpu") and shutil.which("g++") is None:
        pytest.skip("the emulator builds kernels with g++, which is not installed")
    kept = json.loads(path.read_text())
    verdict = worker.judge(kept["case"])
    assert verdict.fine, f"{kept['about']}: {verdict.kind}: {verdict.message}"


def test_cases_are_drawn_alike_and_survive_json():
    drawn = []
    for _ in range(2):
        some: list[object] = []
        for number in range(1, 6):
            examined("expressions", LIMITS["quick"], number, 3, lambda c, some=some: bool(some.append(c)), False)
        drawn.append(some)
    assert drawn[0] == drawn[1] == json.loads(json.dumps(drawn[0]))
