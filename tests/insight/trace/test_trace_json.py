"""Damaged traces of every version are refused in words, or read as traces that can be used."""

import json
import random

import pytest

from roller.errors import ArtifactError
from roller.insight.trace.trace import Trace

TENSOR = {"shape": [2, 2], "stride": [2, 1], "dtype": "float32", "storage": 0, "offset": 0}
OPERATOR = {
    "index": 0, "name": "aten.relu.default", "phase": "forward", "inputs": [TENSOR], "outputs": [TENSOR],
    "arguments": {"self": {"tensor": 0}}, "module": "a.b", "stream": 0, "recomputed": False, "iteration": 0,
}  # fmt: skip
WHOLE = {
    "format": "roller-trace", "events": [["alloc", 0, 16, -1, 0], ["free", 0, 1]], "iterations": [0, 1, 2],
    "storages": {"0": {"kind": "parameter", "name": "w", "size_bytes": 16}}, "options": {"batch": 2}, "warnings": ["w"],
}  # fmt: skip
VERSIONS = (
    {**WHOLE, "version": 1, "operators": [{**OPERATOR, "source": ["a.py", 3]}, {**OPERATOR, "source": None}]},
    {**WHOLE, "version": 2, "operators": [{**OPERATOR, "stack": 0}, {**OPERATOR, "stack": 1}],
     "stacks": [[["a.py", 3, "f", ""], ["b.py", 7, "g", "a"]], []], "registered": {"w": 0}},
)  # fmt: skip
VALUES = (None, True, 0, -1, 7, 10**30, float("inf"), 1.5, "", "x", [], [1], [[]], {}, {"a": 1})


def damaged(whole, chance):
    whole = json.loads(json.dumps(whole))
    where, key, at = whole, chance.choice(list(whole)), chance.randrange(6)
    while at and isinstance(where[key], (dict, list)) and where[key]:
        where, at = where[key], at - 1
        key = chance.choice(list(where) if isinstance(where, dict) else range(len(where)))
    if chance.random() < 0.2:
        del where[key]
    else:
        where[key] = chance.choice(VALUES)
    return whole


@pytest.mark.parametrize("whole", VERSIONS, ids=["version 1", "version 2"])
def test_what_is_damaged_is_refused_or_can_be_used(whole):
    assert len(Trace.from_json(json.dumps(whole)).operators) == 2
    chance, refused = random.Random(0), 0
    for _ in range(400):
        text = json.dumps(damaged(whole, chance))
        try:
            found = Trace.from_json(text, "a.json")
        except ArtifactError as error:
            refused += "a.json: " in str(error)
            continue
        again = Trace.from_json(found.to_json())
        assert again.operators == found.operators and again.registered == found.registered, text
        assert isinstance(found.samples, float) and found.unlike()[0] is found, text
        assert len(found.steady()) <= len(found.operators), text
        assert len({o.signature for o in found.operators}) <= len([o.source for o in found.operators]), text
        assert len(found.allocations) <= len(found.events), text
    assert 100 < refused < 400
