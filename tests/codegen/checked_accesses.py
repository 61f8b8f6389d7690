"""Runs the loops of a CPU kernel's TIR without its arithmetic, and checks every access to a buffer.

Unlike protected pages, this sees buffers on the stack, reads of elements that nothing has written, and tasks that read
what another task of the same loop writes. Generated Python calls a :class:`Memory` for each element.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from roller.te.compat import dtype_of, is_buffer_var, tirx

_OPERATORS = {
    "Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%", "EQ": "==", "NE": "!=", "LT": "<",
    "LE": "<=", "GT": ">", "GE": ">=", "And": "and", "Or": "or",
}  # fmt: skip
_FUNCTIONS = {"Min": "min", "Max": "max"}
_PREFETCH, _COPY = "roller_prefetch", "memcpy"


class Tasks:
    """The task that runs, and where the parallel loop that it belongs to began."""

    def __init__(self) -> None:
        self.now = self.first = 1
        self.found: dict[str, str] = {}

    def report(self, access: str, what: str) -> None:
        """Note the first fault of an access."""
        self.found.setdefault(access, f"{access}: {what}")

    def split(self, count: int) -> Iterator[int]:
        """Yield the iterations of a parallel loop, each of which is a task; a nested loop is part of its task."""
        if self.now != self.first:
            yield from range(count)
            return
        for n in range(count):
            self.now += 1
            yield n
        self.now = self.first = self.now + 1


class Memory:
    """The elements of a buffer: by which task each was written last, and first and last read."""

    def __init__(self, tasks: Tasks, size: int, written: bool) -> None:
        self.tasks = tasks
        self.writers, self.readers = [int(written)] * size, [(0, 0)] * size

    def _inside(self, access: str, at: int) -> bool:
        if 0 <= at < len(self.writers):
            return True
        self.tasks.report(access, f"element {at} of {len(self.writers)}")
        return False

    def read(self, access: str, at: int) -> None:
        """Check a load of one element."""
        if not self._inside(access, at):
            return
        writer, (begin, _), t = self.writers[at], self.readers[at], self.tasks
        if not writer:
            t.report(access, f"reads element {at}, which nothing has written")
        elif writer > t.first and writer != t.now:
            t.report(access, f"reads element {at}, which another task writes")
        self.readers[at] = (begin if begin > t.first else t.now, t.now)

    def write(self, access: str, at: int) -> None:
        """Check a store of one element; several tasks may store the same value."""
        if not self._inside(access, at):
            return
        t = self.tasks
        if any(r > t.first and r != t.now for r in self.readers[at]):
            t.report(access, f"writes element {at}, which another task reads")
        self.writers[at] = t.now


class _OnDataError(Exception):
    """A number that depends on the values of elements."""


class _Writer:
    """Writes the Python of a function's body."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth, self.count = 1, 0
        self.names: dict[Any, str] = {}

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def name(self, what: Any) -> str:
        self.count += 1
        self.names[what] = f"n{self.count}"
        return self.names[what]

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.emit(head)
        self.depth += 1
        self.emit("pass")
        yield
        self.depth -= 1

    def number(self, e: Any, lane: str = "0") -> str:
        """Return an integer or a condition as Python, at a lane of a vector."""
        kind = type(e).__name__
        if isinstance(e, tirx.IntImm):
            return str(int(e.value))
        if e in self.names and not is_buffer_var(e):
            return self.names[e]
        if kind in _OPERATORS and "float" not in dtype_of(e.a):
            return f"({self.number(e.a, lane)} {_OPERATORS[kind]} {self.number(e.b, lane)})"
        if kind in _FUNCTIONS and "float" not in dtype_of(e):
            return f"{_FUNCTIONS[kind]}({self.number(e.a, lane)}, {self.number(e.b, lane)})"
        if kind == "Ramp":
            return f"({self.number(e.base)} + {lane} * {self.number(e.stride)})"
        if kind == "Not":
            return f"(not {self.number(e.a, lane)})"
        if kind in ("Broadcast", "Cast") and "float" not in dtype_of(e):
            return self.number(e.value, lane)
        if kind == "Select" or (kind == "Call" and e.op.name == "prim.if_then_else"):
            c, a, b = (e.condition, e.true_value, e.false_value) if kind == "Select" else e.args
            return f"({self.number(a, lane)} if {self.number(c, lane)} else {self.number(b, lane)})"
        raise _OnDataError(kind)

    def address(self, buffer: Any, indices: Any, lane: str = "0") -> str:
        place = "0"
        for extent, index in zip(buffer.ty.shape, indices, strict=True):
            place = f"({place} * {self.number(extent)} + {self.number(index, lane)})"
        return place

    def access(self, how: str, buffer: Any, indices: Any) -> None:
        lanes = max(int(dtype_of(i).partition("x")[2] or 1) for i in indices)
        access = f"{how} {buffer.name}[{', '.join(map(str, indices))}]"
        with self.block(f"for lane in range({lanes}):"):
            self.emit(f"{self.names[buffer]}.{how}({access!r}, {self.address(buffer, indices, 'lane')})")

    def branches(self, condition: Any, then: Any, otherwise: Any) -> None:
        """Write two branches; both run where the condition depends on elements."""
        self.reads(condition)
        try:
            heads = f"if {self.number(condition)}:", "else:"
        except _OnDataError:
            heads = "if True:", "if True:"
        for head, part in zip(heads, (then, otherwise), strict=True):
            with self.block(head):
                part()

    def reads(self, e: Any) -> None:
        """Write the loads of an expression."""
        kind = type(e).__name__
        if kind == "TensorLoad":
            for i in e.indices:
                self.reads(i)
            self.access("read", e.source, e.indices)
        elif kind == "Call" and e.op.name == "prim.if_then_else":
            self.branches(e.args[0], lambda: self.reads(e.args[1]), lambda: self.reads(e.args[2]))
        elif kind == "Call" and e.op.name == "tirx.call_extern":
            self._call(str(e.args[0].value), e.args[1:])
        else:
            parts = {"Call": ("args",), "Shuffle": ("vectors",), "Let": ("value", "body"), "Ramp": ("base", "stride"),
                     "Select": ("condition", "true_value", "false_value"), "Broadcast": ("value",), "Cast": ("value",),
                     "Not": ("a",)}  # fmt: skip
            for name in parts.get(kind, ("a", "b") if hasattr(e, "b") else ()):
                part = getattr(e, name)
                for x in part if name in ("args", "vectors") else (part,):
                    self.reads(x)

    def _call(self, name: str, arguments: Any) -> None:
        if name == _PREFETCH:
            return
        assert name == _COPY, f"a call of '{name}' is not modelled"
        *places, count = arguments
        for how, (load,) in zip(("write", "read"), (p.args for p in places), strict=True):
            step = f"range({self.number(count)} // {int(load.source.ty.dtype.itemsize)})"
            with self.block(f"for n in {step}:"):
                at = self.address(load.source, load.indices)
                self.emit(f"{self.names[load.source]}.{how}({f'copy of {load.source.name}'!r}, {at} + n)")

    def run(self, s: Any) -> None:
        """Write a statement."""
        kind = type(s).__name__
        if kind == "SeqStmt":
            for part in s.seq:
                self.run(part)
        elif kind == "For":
            count, var = self.number(s.extent), self.name(s.loop_var)
            parallel = s.kind == tirx.ForKind.PARALLEL
            with self.block(f"for {var} in {f'tasks.split({count})' if parallel else f'range({count})'}:"):
                self.run(s.body)
        elif kind == "IfThenElse":
            other = s.else_case
            self.branches(s.condition, lambda: self.run(s.then_case), lambda: other is not None and self.run(other))
        elif kind == "BufferStore":
            self.reads(s.value)
            self.access("write", s.buffer, s.indices)
        elif kind == "AllocBuffer":
            size = " * ".join(self.number(x) for x in s.buffer.ty.shape)
            self.emit(f"{self.name(s.buffer)} = Memory(tasks, {size}, False)")
        elif kind == "Bind":
            self.reads(s.value)
            with contextlib.suppress(_OnDataError):
                value = self.number(s.value)
                self.emit(f"{self.name(s.var)} = {value}")
        elif kind == "Evaluate":
            self.reads(s.value)
        else:
            assert kind == "AttrStmt", f"a statement '{kind}' is not modelled"
            self.run(s.body)


def faults(module: Any, roles: Mapping[str, str], sizes: Mapping[str, int] | None = None) -> list[str]:
    """Return the first fault of every access of a module's functions.

    ``roles`` are those of the arguments by name, and ``sizes`` those of a kernel over ranges.
    """
    tasks, held = Tasks(), dict[str, Memory]()
    for function in ("pack", "main"):
        if function not in {v.name_hint for v in module.functions}:
            continue
        f, writer = module[function], _Writer()
        for p in f.params:
            if str(p.name).endswith(".size"):
                writer.names[p.ty.shape[0]] = str((sizes or {})[str(p.name).removesuffix(".size")])
        for p in f.params:
            elements = math.prod(eval(writer.number(x)) for x in p.ty.shape)
            held.setdefault(str(p.name), Memory(tasks, elements, roles[str(p.name)] not in ("output", "panel")))
        names = [writer.name(p) for p in f.params]
        writer.run(f.body)
        scope: dict[str, Any] = {"Memory": Memory, "tasks": tasks}
        exec("\n".join([f"def run({', '.join(names)}):", "  pass", *writer.lines]), scope)
        scope["run"](*(held[str(p.name)] for p in f.params))
    lacking = {n: held[n].writers.count(0) for n, role in roles.items() if role == "output"}
    return [*tasks.found.values(), *(f"{n}: {k} elements are not written" for n, k in lacking.items() if k)]
