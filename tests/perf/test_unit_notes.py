"""A dtype that a device's matrix unit lacks is said wherever a price appears."""

from __future__ import annotations

import json

import pytest

from roller import ops
from roller.hardware import list_specs, load_spec
from roller.insight.forecast import forecast
from roller.insight.trace.trace import Operator, TensorRecord, Trace
from roller.perf.matrix_unit_notes import notes_on_matrix_unit
from tests.offenders import every

NARROW = ("float16", "bfloat16", "int8", "float8_e4m3fn")
GPUS = [name for name in list_specs() if load_spec(name).traits.blocks]


def product(dtype: str, **how: str) -> object:
    return ops.matmul(256, 256, 256, dtype=dtype, **how)


@pytest.mark.parametrize(
    ("device", "dtype", "said"),
    [
        ("t4", "bfloat16", "bfloat16 has no matrix unit on t4 (its specification has one for float16): priced on CUDA"),
        ("t4", "int8", "int8 has no matrix unit on t4"),
        ("p100", "float16", "float16 has no matrix unit on p100: priced on CUDA cores."),
        ("mi50", "bfloat16", "bfloat16 has no matrix unit on mi50: priced on vector units."),
        ("b200", "float16", "priced with the matrix instructions of earlier devices (mma); its own (tcgen05) are not"),
        ("mi100", "float32", ""), ("mi100", "float64", ""),
        ("h100", "float16", ""), ("a100", "bfloat16", ""), ("t4", "float16", ""), ("a100", "float32", ""),
        ("mi300x", "float16", ""), ("cpu-avx2", "float16", ""),
    ],
)  # fmt: skip
def test_what_a_unit_lacks_is_said(device: str, dtype: str, said: str) -> None:
    found = notes_on_matrix_unit([product(dtype)], load_spec(device))
    assert (len(found) == 1 and said in found[0]) if said else found == ()


def test_matrix_instructions_that_no_template_emits_are_said_of_our_kernels() -> None:
    spec = load_spec("mi300x")
    (note,) = notes_on_matrix_unit([product("float16")], spec, ours=True)
    assert "(mfma), which no template emits code for" in note
    assert notes_on_matrix_unit([product("float16")], load_spec("a100"), ours=True) == ()


@every("device", GPUS)
@every("dtype", NARROW)
def test_a_dtype_without_a_fragment_is_never_priced_without_a_word(device: str, dtype: str) -> None:
    spec = load_spec(device)
    assert bool([f for f in spec.fragments if f.operand == dtype]) or notes_on_matrix_unit([product(dtype)], spec)


def test_what_is_no_product_has_no_note() -> None:
    assert notes_on_matrix_unit([ops.softmax((64, 64), dtype="bfloat16"), ops.reduce("sum", (8, 8), axes=(1,))],
                      load_spec("t4")) == ()  # fmt: skip


def test_sums_that_no_instruction_has_are_said() -> None:
    (note,) = notes_on_matrix_unit([product("int8", acc_dtype="float32")], load_spec("a100"))
    assert note == "int8 with sums in float32 has no matrix unit on a100: priced on CUDA cores."


@pytest.mark.parametrize("verb", ["predict", "construct", "explain", "sensitivity"])
def test_every_verb_that_prices_says_it(cli, verb: str) -> None:
    more = {"predict": ("--policy", "library"), "construct": ("-k", "1"), "sensitivity": ("--same-program",)}
    more, operator = more.get(verb, ()), "matmul(16, 16, 16, dtype='bfloat16')"
    words = " ".join(cli(verb, operator, "-d", "t4", *more)[1].split())
    assert "bfloat16 has no matrix unit on t4" in words
    data = json.loads(cli(verb, operator, "-d", "t4", *more, "--json")[1])
    assert any("bfloat16 has no matrix unit on t4" in x for x in data["notes"])


def test_a_forecast_says_it() -> None:
    def step(dtype: str) -> Trace:
        x, w, y = (TensorRecord((512, 512), (512, 1), dtype, n) for n in range(3))
        return Trace((Operator(0, "aten.mm.default", "forward", (x, w), (y,)),), (), {}, (0, 1), {"batch": 512})

    assert any("float16 has no matrix unit on p100" in x for x in forecast(step("float16"), "p100").to_dict()["notes"])
    assert forecast(step("float32"), "p100").notes == ()
