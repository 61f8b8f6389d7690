"""Random floating-point expressions, and every result that arithmetic as written permits.

Permitted is, of each element, the correctly rounded result of every operation in its own dtype, where a sum may be
contracted with a product that it adds (a fused multiply-add) or not: each sum for itself. Of two zeros either is the
maximum. Nothing else is rearranged.
"""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np

from roller.expr import Axis, Call, Const, Load, Stage, Tensor, TensorExpr, axis_index

N = 256
#: Operands, in all pairs.
_MANY = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.3, 2.7, -3.6, 0.2, -1.0, 2.5, 3e4, -5e4, 6e-8, -6e-8, 1e-40, 1e30, -3e38)
#: Literals: the last two of a dtype are beyond which it holds no fractions, and no odd numbers.
_LITERALS = (0.0, -0.0, 1.0, -1.0, 0.1, -3.0, 0.5, 1e30, 1e-30)
_BIG = {"float16": (1536.0, 2048.0), "float32": (12582912.0, 2.0**24), "float64": (1.5 * 2.0**52, 2.0**53)}
#: More contractions than these, in all combinations, make an expression that is not used.
_MOST = 32


def operands(dtype):
    """Return two arrays ``(N,)`` that hold most pairs of values with something special about them."""
    with np.errstate(over="ignore"):
        x = np.resize(np.array(_MANY).astype(dtype), N)
        y = np.repeat(np.array(_MANY).astype(dtype), -(-N // len(_MANY)))[:N]
    return x, y


def random_expression(seed, dtype, outputs):
    """Return an expression with so many element-wise outputs of X and Y: one kernel computes all."""
    rng = random.Random(f"{seed} {dtype}")
    bodies = list(itertools.islice((b for b in iter(lambda: _value(rng, dtype, 4), None) if _few(b)), outputs))
    tensors, at = tuple(Tensor(n, (N,), dtype) for n in "XY"), (axis_index("i"),)
    stages = tuple(
        Stage(Tensor(f"Z{n}", (N,), dtype), (Axis("i", N),), at, body, None, dtype) for n, body in enumerate(bodies)
    )
    return TensorExpr("random", tensors, stages, tuple(s.name for s in stages))


def unpermitted(expression, given, results):
    """Return a line for every output with an element that no permitted evaluation gives."""
    wrong = []
    arrays = dict(zip("XY", given, strict=True))
    for stage, got in zip(expression.stages, results, strict=True):
        with np.errstate(all="ignore"):
            variants = _results(stage.body, arrays, {})
        fits = np.zeros(N, bool)
        for want in variants:
            want = np.broadcast_to(want, (N,))
            fits |= (want == got) & (np.signbit(want) == np.signbit(got)) | (np.isnan(want) & np.isnan(got))
        if not fits.all():
            at = int(np.argmin(fits))
            wants = sorted({repr(np.broadcast_to(w, (N,))[at]) for w in variants})
            x, y = (a[at] for a in given)
            wrong.append(f"{_text(stage.body)} of X = {x!r}, Y = {y!r}: got {got[at]!r}, permitted {', '.join(wants)}")
    return wrong


def _text(node):
    if isinstance(node, Load):
        return node.tensor
    return repr(node.value) if isinstance(node, Const) else f"{node.fn}({', '.join(map(_text, node.args))})"


def _value(rng, dtype, depth):
    if not depth or rng.random() < 0.1:
        kind = rng.random()
        if kind < 0.8:
            return Load(rng.choice("XY"), (axis_index("i"),))
        return Const(rng.choice((*_LITERALS, *_BIG[dtype])), dtype)

    def inner():
        return _value(rng, dtype, depth - 1)

    kind = rng.random()
    if kind < 0.25:  # what an exact simplifier would cancel
        u, v = inner(), rng.choice([inner(), *(Const(b, dtype) for b in _BIG[dtype])])
        add, sub = rng.choice([("add", "sub"), ("sub", "add")])
        return Call(sub, (Call(add, (u, v)), v)) if rng.random() < 0.7 else Call(sub, (u, u))
    if kind < 0.75:
        return Call(rng.choice(["add", "sub", "mul", "mul", "div"]), (inner(), inner()))
    if kind < 0.82:
        return Call(rng.choice(["neg", "abs"]), (inner(),))
    if kind < 0.9:
        return Call(rng.choice(["max", "min"]), (inner(), inner()))
    u = inner()
    v = rng.choice([u, inner()])
    return Call("select", (Call(rng.choice(["eq", "lt", "le"]), (u, v)), inner(), inner()))


def _few(body):
    """Whether all combinations of an expression's contractions are few enough, and it reads something."""
    combinations = 1
    for n in _walk(body):
        if isinstance(n, Call) and n.fn in ("add", "sub"):
            combinations *= 1 + sum(map(_products, n.args))
    return combinations <= _MOST and any(isinstance(n, Load) for n in _walk(body))


def _products(node):
    """Return how many products a sum may be contracted with that adds a node."""
    if not isinstance(node, Call):
        return 0
    return 1 if node.fn == "mul" else sum(_products(part) for part in _parts(node))


def _parts(node):
    """Return the operands that a node may be: of a negation, a selection, or a sum with literals that may be zero."""
    if node.fn in ("add", "sub"):
        return [a for n, a in enumerate(node.args) if not any(isinstance(x, Load) for x in _walk(node.args[1 - n]))]
    return {"neg": node.args, "select": node.args[1:]}.get(node.fn, ())


def _walk(node):
    yield node
    for a in node.args if isinstance(node, Call) else ():
        yield from _walk(a)


def _results(node, arrays, known):
    """Return every permitted array of a node; equal nodes are computed by themselves, as compilers may."""
    if isinstance(node, Load):
        return [arrays[node.tensor]]
    if isinstance(node, Const):
        return [np.asarray(node.value, node.dtype)]
    if node in known:
        return known[node]
    parts = [_results(a, arrays, known) for a in node.args]
    one = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "abs": np.abs,
        "eq": np.equal, "lt": np.less, "le": np.less_equal, "select": np.where,
        "max": np.maximum, "min": np.minimum,
    }[node.fn]  # fmt: skip
    found = [one(*p) for p in itertools.product(*parts)]
    if node.fn in ("max", "min"):  # of zeros it is either
        found = [
            np.where(a == b, either, f)
            for f, (a, b) in zip(found, itertools.product(*parts), strict=True)
            for either in (a, b)
        ]
    if node.fn in ("add", "sub"):
        for at in (0, 1):
            found += _contracted(node, at, arrays, known)
    known[node] = list({np.broadcast_to(f, (N,)).tobytes(): f for f in found}.values())
    return known[node]


def _contracted(node, at, arrays, known):
    """Return the results of a sum that is contracted with a product which is its operand ``at``, or may be."""
    signs = (1, 1) if node.fn == "add" else (1, -1)
    plain = [_results(a, arrays, known) for a in node.args]
    for mask, a, b in _factors(node.args[at], arrays, known):
        for c, operand in itertools.product(plain[1 - at], plain[at]):
            both = (operand, c) if at == 0 else (c, operand)
            otherwise = both[0] + both[1] if node.fn == "add" else both[0] - both[1]
            yield np.where(mask, fused(signs[at] * a, b, signs[1 - at] * c), otherwise)


def _factors(node, arrays, known):
    """Return where an operand is a product, and of what."""
    if not isinstance(node, Call):
        return
    if node.fn == "mul":
        yield from ((True, a, b) for a, b in itertools.product(*(_results(p, arrays, known) for p in node.args)))
    for part in _parts(node):
        if node.fn == "neg":
            masks = [True]
        elif node.fn == "select":
            masks = [c if part is node.args[1] else ~c for c in _results(node.args[0], arrays, known)]
        else:
            other = node.args[1] if part is node.args[0] else node.args[0]
            masks = [v == 0 for v in _results(other, arrays, known)]
        negative = node.fn == "neg" or (node.fn == "sub" and part is node.args[1])
        for within, (mask, a, b) in itertools.product(masks, list(_factors(part, arrays, known))):
            yield mask & within, -a if negative else a, b


def fused(a, b, c):
    """Return ``a * b + c`` of arrays, rounded once."""
    a, b, c = (np.broadcast_to(v, (N,)) for v in (a, b, c))
    out = np.array(a * b + c)
    # An overflow of the product alone is none of the whole.
    out = np.where(np.isfinite(a) & np.isfinite(b) & np.isinf(c), c, out)
    exact = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    whole = [i for i in np.flatnonzero(exact) if a[i] and b[i]]
    for i in whole:
        value = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        if value:
            out[i] = rounded(value, out.dtype)
    return out


def rounded(value, dtype):
    """Return the number of a dtype nearest to a fraction, ties to even."""
    info = np.finfo(dtype)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    step = Fraction(2) ** (max(exponent, info.minexp) - info.nmant)
    nearest = step * round(size / step)  # of a Fraction, ties to even
    found = float(nearest) if nearest <= Fraction(float(info.max)) else np.inf
    return np.dtype(dtype).type(found if value > 0 else -found)
