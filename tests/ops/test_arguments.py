"""Wrong arguments, the command-line parser, and the benchmark rows."""

from __future__ import annotations

import re

import pytest

from benchmarks.tables import read_table
from roller import ops
from roller.errors import ExprError
from roller.ops import REGISTRY, from_spec, parse
from tests.offenders import every

_ROWS = read_table("operators.yaml")["operators"]


@pytest.mark.parametrize(
    ("bare", "quoted"),
    [
        ("matmul(8, 8, 8, dtype=float16)", "matmul(8, 8, 8, dtype='float16')"),
        ("matmul(8, 8, 8, epilogue=(bias, gelu))", "matmul(8, 8, 8, epilogue=('bias', 'gelu'))"),
        ("matmul(8, 8, 8, epilogue=[bias, clip(0, 6)])", "matmul(8, 8, 8, epilogue=('bias', 'clip(0, 6)'))"),
        ("elementwise((add, relu), (8, 8))", "elementwise(('add', 'relu'), (8, 8))"),
    ],
)
def test_quotes_of_text_may_be_left_out(bare, quoted):
    assert parse(bare).key == parse(quoted).key


@pytest.mark.parametrize("text", ["matmul(m, 4, 4)", "matmul(4, 4, 4, batch=int(2))", "matmul(4, 4, 4, dtype=a + b)"])
def test_what_is_no_text_is_still_no_literal(text):
    argument = text.partition("(")[2].rpartition("=")[2].partition(",")[0].removesuffix(")")
    with pytest.raises(ExprError, match=f"expected a literal .*got '{re.escape(argument)}"):
        parse(text)


@every(
    ("text", "message"),
    [
        ("matmul(0, 4, 4)", "argument 'm'.*at least 1, got 0"),
        ("matmul(4, -1, 4)", "argument 'n'"),
        ("matmul(4, 4, 4.0)", "argument 'k'"),
        ("matmul(4, 4, 4, batch=0)", "argument 'batch'"),
        ("matmul(4, 4, True)", "argument 'k'"),
        ("matmul(4, 4, 4, dtype='float31')", "argument 'dtype'.*float32"),
        ("matmul(4, 4, 4, epilogue=('rleu',))", "did you mean 'relu'"),
        ("matmul(4, 4, 4, dtype='int8', epilogue=('tanh',))", "floating-point"),
        ("conv2d(1, 3, 4, 4, 8, 5, 5)", "covers 5 elements along 'h'"),
        ("conv2d(1, 3, 4, 9, 8, 3, 3, dilation=2)", "covers 5 elements"),
        ("conv2d(1, 3, 8, 8, 8, 3, 3, groups=2)", "divisor of c=3"),
        ("conv2d(1, 4, 8, 8, 7, 3, 3, groups=2)", "divisor of f=7"),
        ("conv2d(1, 3, 8, 8, 8, 3, 3, stride=0)", "argument 'stride'"),
        ("conv2d(1, 3, 8, 8, 8, 3, 3, padding=-1)", "argument 'padding'"),
        ("conv2d(1, 3, 8, 8, 8, 3, 3, padding=(1, 2, 3))", "argument 'padding'"),
        ("conv2d(1, 3, 8, 8, 8, 3, 3, layout='NCWH')", "did you mean 'NCHW'"),
        ("conv2d(1, 3, 8, 8, 8, 3, 3, layout='NCHW12c')", "power of two from 2 to 64 channels, got 12"),
        ("conv2d(1, 3, 8, 8, 8, 3, 3, layout='NCHW128c')", "power of two from 2 to 64 channels, got 128"),
        ("conv2d(1, 3, 8, 8, 8, 3, 3, layout='NCHW16')", "did you mean 'NCHW16c'"),
        ("conv2d(1, 12, 8, 8, 12, 3, 3, groups=2, layout='NCHW8c')", "blocks of 8 cut through groups of 6 input"),
        ("conv2d(1, 16, 8, 8, 8, 3, 3, groups=4, layout='NCHW8c')", "groups of 4 input and 2 output"),
        ("depthwise_conv2d(1, 3, 8, 8, 3, 3, multiplier=3, layout='NCHW8c')", "divisor of the block of 8 channels"),
        ("depthwise_conv2d(1, 3, 8, 8, 3, 3, layout='NHCW')", "unknown layout 'NHCW'"),
        ("conv2d(1, 3, 8, 8, 8, 3, 3, kernel_layout='HWOI')", "argument 'kernel_layout': unknown layout 'HWOI'"),
        ("pool2d('max', 1, 3, 8, 8, 3, 3, layout='NWHC')", "unknown layout 'NWHC'"),
        ("pool2d('max', 1, 3, 8, 8, 3, 3, layout='NCHW3c')", "argument 'layout'.*got 3"),
        ("to_blocked(1, 3, 8, 8, block=1)", "argument 'block'.*got 1"),
        ("from_blocked(1, 0, 8, 8)", "at least 1, got 0"),
        ("depthwise_conv2d(1, 3, 8, 8, 3, 3, multiplier=0)", "argument 'multiplier'"),
        ("pool2d('mean', 1, 3, 8, 8, 3, 3)", "argument 'kind'"),
        ("pool2d('max', 1, 3, 8, 8, 3, 3, padding=3)", "less than kh=3"),
        ("pool2d('avg', 1, 3, 8, 8, 3, 3, dtype='int8')", "floating-point"),
        ("reduce('sum', (4, 4), axes=(2,))", "-2..1, got 2"),
        ("reduce('sum', (4, 4), axes=(0, -2))", "distinct"),
        ("reduce('sum', (4, 4), axes=())", "distinct"),
        ("reduce('argmax', (4, 4, 4), axes=(0, 1))", "one axis or all"),
        ("reduce('summ', (4, 4))", "did you mean 'sum'"),
        ("softmax((4, 4), axis=5)", "argument 'axis'"),
        ("matmul(99999999999999999999, 4, 4)", "argument 'm': expected at most 72057594037927936, got 9"),
        ("matmul(1099511627776, 1, 1099511627776)", "tensor 'A': expected at most 72057594037927936 elements"),
        ("matmul(1048576, 1048576, 1048576)", "stage 'C': expected at most 72057594037927936 points"),
        ("layer_norm((4, 4), dtype='int8')", "argument 'dtype'.*got 'int8'"),
        ("rms_norm((4, 4), acc_dtype='int32')", "argument 'acc_dtype'.*got 'int32'"),
        ("softmax((4, 4), dtype='int32')", "floating-point"),
        ("layer_norm((4, 4), eps=-1.0)", "argument 'eps'"),
        ("elementwise('add', (4, 4), other_shapes=((3,),))", "do not broadcast"),
        ("elementwise('relu', (4, 4), other_shapes=((4,),))", "other_shapes"),
        ("elementwise('clip', (4, 4))", "2 literal parameters"),
        ("elementwise((), (4, 4))", "at least one function"),
        ("elementwise('relu', ())", "argument 'shape'"),
        ("matmull(1, 2, 3)", "did you mean 'matmul'"),
        ("matmul(m=1, n=2)", r"missing arguments \['k'\]"),
        ("matmul(1, 2, 3, tranpose_a=True)", "did you mean 'transpose_a'"),
        ("matmul(1, 2, 3, m=4)", "given twice"),
        ("matmul(1, 2, 3, None, False, False, 'float32')", "at most 6 positional"),
        ("matmul(1, 2, k=__import__('os').getpid())", "argument 'k'.*literal"),
        ("matmul(1, 2, k=n)", "argument 'k'.*literal"),
        ("matmul(1, 2, 3, **{})", "unknown argument"),
        ("matmul(1, 2", "syntax error"),
        ("matmul", "expected 'name"),
        ("reduce('sum', {1: 2})", "argument 'shape'"),
        ("softmax((4, 5), axis=(0, 1))", r"argument 'axis': expected one dimension, got \(0, 1\)"),
        ("reduce('argmax', (4, 300), axes=1, out_dtype='int8')", "'out_dtype'.*positions up to 299, got 'int8'"),
        ("reduce('argmax', (4, 30), axes=1, out_dtype='float16')", "'out_dtype'.*positions up to 29, got 'float16'"),
        (f"elementwise('clip(0,{'9' * 400})', (8,))", "cannot read 'clip"),
    ],
)
def test_bad_arguments_name_the_argument(text: str, message: str) -> None:
    with pytest.raises(ExprError, match=message):
        parse(text)


def test_parse_takes_positional_and_keyword_literals() -> None:
    expr = parse("conv2d(8, 64, h=56, w=56, f=32, kh=3, kw=3, stride=(2, 1), padding=1, epilogue=('bias', 'relu'))")
    assert str(expr).startswith("conv2d[n=8 f=32 ho=28 wo=56 c=64 kh=3 kw=3] ")
    assert expr.key == REGISTRY["conv2d"](8, 64, 56, 56, 32, 3, 3, (2, 1), 1, epilogue=("bias", "relu")).key


def test_rows_construct_with_their_flops() -> None:
    assert len(_ROWS) == len({r["id"] for r in _ROWS}) == 119
    for row in _ROWS:
        expr = from_spec(row)
        # The rows count one operation per window element; an average over more than one also scales every output once.
        scaled = row.get("pool") == "avg" and row["KH"] * row["KW"] > 1
        extra = expr.output_tensors[0].elements if scaled else 0
        assert expr.flops == row["flops"] + extra, row["id"]
        assert all(t.dtype == "float32" for t in expr.tensors.values())


def test_rows_split() -> None:
    assert sum(r["split"] == "heldout" for r in _ROWS) == 39


@every("row", [r for r in _ROWS if r["id"] in ("M0", "M1", "C0", "D0", "E0", "P0", "R0")],
                         ids=lambda r: r["id"])  # fmt: skip
def test_batch_replaces_the_leading_extent(row: dict[str, object]) -> None:
    small = from_spec(row, batch=2)
    # 65536 rows are 128 sequences of 512; the M of a small layer is its own and does not scale.
    assert small.inputs[0].shape[0] == {"M0": 1024, "M1": 128}.get(str(row["id"]), 2)
    assert small.inputs[0].shape[1:] == from_spec(row).inputs[0].shape[1:]


def test_spec_same_padding_and_defaults() -> None:
    row = {"op": "conv2d", "C": 3, "H": 15, "W": 14, "F": 4, "KH": 3, "KW": 3, "stride": 2, "padding": "SAME"}
    expr = from_spec(row)
    assert expr.output_tensors[0].shape == (128, 4, 8, 7)
    explicit = REGISTRY["conv2d"](128, 3, 15, 14, 4, 3, 3, 2, (1, 1, 0, 1))
    assert expr.key == explicit.key
    for fn in ("bias_add", "multiply", "sigmoid"):
        assert from_spec({"op": "elementwise", "fn": fn, "shape": [64, 256]}).output_tensors[0].shape == (64, 256)


def test_rows_name_their_layouts() -> None:
    last = {"H": 8, "W": 9, "C": 6, "KH": 3, "KW": 3, "layout": "NHWC"}
    conv = from_spec({"op": "conv2d", "F": 4, "kernel_layout": "HWIO", **last}, batch=2)
    assert [t.shape for t in conv.inputs] == [(2, 8, 9, 6), (3, 3, 6, 4)]
    depthwise = from_spec({"op": "depthwise_conv2d", "kernel_layout": "OHWI", **last}, batch=2)
    assert [t.shape for t in depthwise.inputs] == [(2, 8, 9, 6), (6, 3, 3, 1)]
    pooled = from_spec({"op": "pooling", "pool": "max", **last}, batch=2)
    assert pooled.output_tensors[0].shape == (2, 6, 7, 6)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"op": "conv"}, "did you mean 'conv2d'"),
        ({"id": "M9", "op": "matmul", "M": 4, "N": 4}, "M9: missing column 'K'"),
        ({"op": "pooling", "pool": "avg", "C": 1, "H": 4, "W": 4, "KH": 2, "KW": 2, "padding": "same"}, "SAME, VALID"),
    ],
)
def test_spec_errors(row: dict[str, object], message: str) -> None:
    with pytest.raises(ExprError, match=message):
        from_spec(row)


def test_operators_of_another_type_are_refused() -> None:
    with pytest.raises(ExprError, match="operator: expected text, got NoneType"):
        parse(None)  # type: ignore[arg-type]
    with pytest.raises(ExprError, match="operator row: expected a mapping of columns, got int"):
        from_spec(3)  # type: ignore[arg-type]


def test_a_suggestion_ends_its_sentence() -> None:
    with pytest.raises(ExprError, match=r"did you mean 'relu'\? Use one of \["):
        parse("elementwise('rlu', (4,))")
    with pytest.raises(ExprError, match=r"unknown operator\. Use one of \["):
        parse("nothing_like_it(1)")


@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_numbers_are_not_accumulated_as_truth_values(dtype):
    """A convolution of one tap has no sum that would refuse it, and gave 1 for -49."""
    with pytest.raises(ExprError, match="'acc_dtype': expected a dtype of numbers"):
        ops.depthwise_conv2d(1, 4, 4, 4, 1, 1, dtype=dtype, acc_dtype="bool")


@pytest.mark.parametrize(("given", "literal"), [("true", "True"), ("FALSE", "False"), ("null", "None")])
def test_literals_of_other_languages_are_named_as_python_writes_them(given, literal):
    with pytest.raises(ExprError, match=rf"'transpose_a': expected .*, got '{given}'. Write {literal}."):
        parse(f"matmul(8, 8, 8, transpose_a={given})")
