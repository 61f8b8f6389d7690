"""One rule over many items is one test: it checks all items and reports every failure with its reason.

:func:`every` stands where ``pytest.mark.parametrize`` would, and takes the same arguments. A case of its own costs what
pytest does around it, about 3 ms: worth it where cases are slow, or are debugged one by one.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import pytest

#: Lines of one reason that are shown; of an offender alone, the traceback has the rest.
_LINES = 12
#: Exceptions that end the run: they are raised again.
_PASSED_ON = (KeyboardInterrupt, GeneratorExit, pytest.exit.Exception)
_Test = Callable[..., None]
#: Names of items, or what names one argument of an item.
Ids: TypeAlias = Iterable[str] | Callable[[Any], Any] | None
#: The names of items with the arguments they stand for.
_Axis = list[tuple[str, dict[str, Any]]]


class Offenders:
    """Collects the items that break a rule; fails at the end of its ``with`` and names them all.

    Whatever an item raises is collected, with its type unless it is an assertion. A skip counts as a failure: the item
    was not checked. No item at all is a failure.
    """

    def __init__(self) -> None:
        self._looked_at = 0
        self._found: list[tuple[str, BaseException]] = []

    def __enter__(self) -> Offenders:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, _PASSED_ON):
            return
        if error is not None and not any(error is known for _, known in self._found):
            self._found.append(("between items", error))
        elif not self._looked_at:
            raise AssertionError("no items: the rule was checked on nothing")
        if self._found:
            raise AssertionError(self._report()) from self._found[0][1]

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Check one item: the exception that the block raises is its failure."""
        self._looked_at += 1
        try:
            yield
        except _PASSED_ON:
            raise
        except BaseException as error:
            self._found.append((name, error))
            if str(error).startswith("Timeout (>"):  # pytest-timeout fires once: later items would have no limit
                raise

    def _report(self) -> str:
        lines = [f"{len(self._found)} of {self._looked_at} items break the rule; the traceback is that of the first:"]
        for name, error in self._found:
            first, *rest = _reason(error).splitlines() or [""]
            lines += [f"- {name}: {first}", *(f"    {line}" for line in rest[: _LINES - 1])]
            lines += [f"    ... {len(rest) - _LINES + 1} more lines"] if len(rest) >= _LINES else []
        return "\n".join(lines)


def _reason(error: BaseException) -> str:
    """Return what an error says, after its type where it is no assertion, and where in a test it was raised."""
    is_assertion = isinstance(error, (AssertionError, pytest.fail.Exception))
    kind = "" if is_assertion else f"{type(error).__name__}: "
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    inside = next((f for f in reversed(frames) if Path(f.filename).name.startswith("test_")), None)
    where = f"{Path(inside.filename).name}:{inside.lineno}: " if inside is not None else ""
    return f"{where}{kind}{error}"


def every(names: str | Sequence[str], items: Iterable[Any], ids: Ids = None) -> Callable[[_Test], _Test]:
    """Make a test of one item a test of all: see ``pytest.mark.parametrize`` for the arguments.

    Of two that are stacked every combination is an item. Each item has the arguments ``tmp_path`` and ``monkeypatch``
    to itself, if the test takes them: a folder of its own, and patches that are undone after it. All other fixtures
    are those of the one test. Together quick items may take as long as a slow test: the test is always run.
    """
    arguments = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    axis = _axis(arguments, list(items), ids)

    def decorate(test: _Test) -> _Test:
        inner, axes, given = getattr(test, "every", (test, [], frozenset()))
        return _test_of_all(inner, [*axes, axis], given.union(arguments), getattr(test, "pytestmark", []))

    return decorate


def _axis(arguments: list[str], items: list[Any], ids: Ids) -> _Axis:
    """Return the name of every item with the arguments it stands for."""
    named = list(ids) if ids is not None and not callable(ids) else [None] * len(items)
    assert len(named) == len(items), f"{len(named)} ids of {len(items)} items"
    found, taken = [], dict[str, int]()
    for index, (item, own) in enumerate(zip(items, named, strict=True)):
        # The type of what pytest.param returns, which has no public name.
        if type(item).__name__ == "ParameterSet":
            assert not item.marks, f"item {index} has marks: give it a test of its own"
            item, own = item.values, item.id or own
            item = item[0] if len(arguments) == 1 else item
        values = (item,) if len(arguments) == 1 else tuple(item)
        kept = dict(zip(arguments, values, strict=True))
        say = ids if callable(ids) else lambda value: None
        name = own or "-".join(_id(say(v), v, f"{a}{index}") for a, v in kept.items())
        taken[name] = taken.get(name, 0) + 1
        found.append((name if taken[name] == 1 else f"{name} ({taken[name]})", kept))
    return found


def _id(said: Any, value: Any, otherwise: str) -> str:
    """Return the name of one argument of an item: as its test says, or as its text if it is short."""
    if said is not None:
        return str(said)
    text = value if isinstance(value, str) else getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 60 and text.isprintable() else otherwise


def _test_of_all(test: _Test, axes: list[_Axis], given: frozenset[str], marks: Sequence[pytest.Mark]) -> _Test:
    """Return the test that looks at every combination; its arguments are those that are no items': fixtures."""
    signature = inspect.signature(test)
    fixtures = [p for p in signature.parameters.values() if p.name not in given]

    @functools.wraps(test, updated=())
    def test_all(**shared: Any) -> None:
        with Offenders() as offenders:
            for number, item in enumerate(itertools.product(*axes)):
                kept = {name: value for _, part in item for name, value in part.items()}
                with offenders.of("-".join(name for name, _ in item)), ExitStack() as stack:
                    test(**kept, **_own(shared, number, stack))

    test_all.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
    test_all.every = (test, axes, given)  # type: ignore[attr-defined]
    test_all.pytestmark = [*(m for m in marks if m.name != "always"), pytest.mark.always.mark]  # type: ignore[attr-defined]
    return test_all


def _own(shared: dict[str, Any], number: int, stack: ExitStack) -> dict[str, Any]:
    """Return the fixtures of one item."""
    own = dict(shared)
    if "tmp_path" in own:
        own["tmp_path"] = own["tmp_path"] / f"item{number}"
        own["tmp_path"].mkdir()
    if "monkeypatch" in own:
        own["monkeypatch"] = stack.enter_context(own["monkeypatch"].context())
    return own
