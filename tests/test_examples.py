"""Examples run, and say what they promise to show."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("tvm")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cuda_without_gpu", ("1. predicted", 'extern "C" __global__')),
        ("custom_operator", ("tiles: cpu/", "bound by", "measured")),
        ("new_device", ("elementwise: v100: predicted", "dream: gpu/", "% of its time")),
    ],
)
def test_an_example_runs_and_says_what_it_shows(name, said, capsys):
    importlib.import_module(f"examples.{name}").main()
    out = capsys.readouterr().out
    assert [s for s in said if s not in out] == []
