"""Sessions of decoders: the rows of earlier tokens stay in memory of the conversation, and calls extend them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from roller_runtime.core.display import one_line_repr
from roller_runtime.core.dtypes import numpy_dtype
from roller_runtime.core.unpicklable import Unpicklable
from roller_runtime.core.validation import validate_flag, validate_integer
from roller_runtime.core.validation import validate_path as path_of
from roller_runtime.errors import ArtifactError, LaunchError, counted
from roller_runtime.plan.program_steps import Value
from roller_runtime.session.call_metrics import CallMeter
from roller_runtime.session.caller_arrays import Feeds, TensorDescription
from roller_runtime.session.decoder_frames import DecoderFrames
from roller_runtime.session.decoder_inputs import (
    DecoderInputs,
    LengthValue,
    ResidentCache,
    allocate_cache,
    needs_no_conversion,
)
from roller_runtime.session.range_session import RangeSession
from roller_runtime.session.save_ranges import save_ranges
from roller_runtime.session.session_metrics import SessionMetrics

#: Name of the size that counts all tokens of a conversation, including those of the call.
TOTAL = "total"


class DecoderSession(Unpicklable):
    """A decoder on this machine's processor, whose calls extend the caches of a conversation in place.

    Conversations (:meth:`start`) share the weights, and several threads may run different conversations at once. A
    call compiles nothing and copies no row of an earlier token.

    Parameters
    ----------
    ranges
        The model over all lengths; its only size is the number of tokens including those of the call.
    caches
        Inputs of ``ranges`` that conversations keep.
    tokens_per_call
        Number of tokens per call.
    lengths
        Inputs of ``ranges`` that follow the number of tokens.
    """

    other_way: ClassVar[str] = "Save it with save(folder) and load it with load_model; threads may share it."

    def __init__(
        self, ranges: RangeSession, caches: Sequence[ResidentCache], tokens_per_call: int,
        lengths: Mapping[str, LengthValue],
    ) -> None:  # fmt: skip
        self.range_session, self.caches, self.lengths = ranges, tuple(caches), dict(lengths)
        self.tokens_per_call = tokens_per_call
        self._program = program = ranges.plan.largest.program
        held = {c.past for c in self.caches} | self.lengths.keys()
        #: All values at the full capacity.
        self.values = program.values
        self._given = tuple(n for n in program.inputs if n not in held)
        self._names = program.inputs
        self.frames = DecoderFrames(ranges, TOTAL, tokens_per_call)
        #: Reason why each length needs tables of its own; empty if one set of tables follows the length.
        self.rebinding_reason = ""
        #: Counts the calls of all conversations.
        self.meter = CallMeter()
        self._dims: list[tuple[Any, ...]] = [ranges.plan.inputs[n] for n in self._given]
        self._feeds = self._feeds_at(self.capacity)
        self._shapes = self._output_shapes()
        self._slots = [s for s in self._feeds.outputs if s is not None]

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.range_session.name

    @property
    def capacity(self) -> int:
        """Maximum number of tokens in a conversation."""
        return self.range_session.ranges[TOTAL][1]

    @property
    def inputs(self) -> tuple[TensorDescription, ...]:
        """Names, shapes and dtypes of the inputs of a call; ``"total"`` includes the call's own tokens."""
        return tuple(t for t in self.range_session.inputs if t.name in self._given)

    @property
    def outputs(self) -> tuple[TensorDescription, ...]:
        """Names, shapes and dtypes of the outputs, without the caches."""
        return self.range_session.outputs

    @cached_property
    def cache_bytes(self) -> int:
        """Memory of the caches of one conversation, in bytes."""
        return sum(self.values[c.past].nbytes for c in self.caches)

    def start(self) -> Conversation:
        """Return a new, empty conversation."""
        return Conversation(self)

    def metrics(self) -> SessionMetrics:
        """Return the counts of the calls of all conversations since the process was started or forked."""
        counts = self.meter.metrics()
        return SessionMetrics(
            counts.failures, counts.in_progress, counts.latency, self.name, doubt=self.range_session.doubt
        )

    def save(self, folder: str | os.PathLike[str], *, sources: bool = True) -> Path:
        """Write the decoder for ``load_model``, atomically; its kernels are proven at all lengths.

        Parameters
        ----------
        folder
            Folder that does not exist or is empty.
        sources
            Whether to include the programs, estimates and sources of the kernels, for inspection.

        Raises
        ------
        ArtifactError
            If the folder is not empty or cannot be written.
        """
        target = path_of(folder, "folder", error=ArtifactError)
        sources = validate_flag(sources, "sources", error=ArtifactError)
        ranges, inputs = self.range_session, DecoderInputs(self.caches, self.tokens_per_call, self.lengths)
        return save_ranges(
            ranges.parts, target, ranges.plan.chooser.known_results(), sources=sources, decoder=inputs.to_dict()
        )

    def prepare(self) -> None:
        """Choose the kernels for all lengths and lay out their tables, so that no call does."""
        try:
            self.frames.prepare()
        except ArtifactError as err:
            self.rebinding_reason = str(err)

    def _output_shapes(self) -> list[LengthValue]:
        """Return the shapes of outputs as linear functions of the number of tokens."""
        plan, (low, high) = self.range_session.plan, self.range_session.ranges[TOTAL]
        several = []
        for total in (high - 1, high, low):
            data = plan.general.at(plan.with_derived_sizes({TOTAL: total}))
            shapes = {name: np.array(shape, np.int64) for name, shape, _ in data["values"]}
            several.append([shapes[name] for name in self._program.outputs])
        found = [LengthValue(y - (y - x) * high, y - x) for x, y in zip(*several[:2], strict=True)]
        if not all(np.array_equal(f.at(low), shape) for f, shape in zip(found, several[2], strict=True)):
            raise ArtifactError(f"{self.name}: the shape of an output is no linear function of the number of tokens.")
        return found

    def run_step(self, caches: Sequence[np.ndarray], total: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run on validated arrays and on caches, in order, of which ``total`` rows are filled afterwards."""
        held = dict(zip(self._given, arrays, strict=True))
        held.update(zip((c.past for c in self.caches), caches, strict=True))
        held.update((name, length.at(total)) for name, length in self.lengths.items())
        inputs = [held[name] for name in self._names]
        if self.rebinding_reason:
            return self.range_session.at(total).run_checked(inputs)
        outputs: list[np.ndarray] = [
            np.empty(shape.at(total).tolist(), slot.dtype)
            for shape, slot in zip(self._shapes, self._slots, strict=True)
        ]
        with self.frames.borrow(total, len(inputs) + len(outputs)) as frame:
            frame.run(inputs, outputs)
        return outputs

    def _feeds_at(self, total: int) -> Feeds:
        """Return the validation of a call's arrays at a length."""
        shapes = zip(self._given, self._shapes_given(total), strict=True)
        values = {n: Value(n, shape, self.values[n].dtype) for n, shape in shapes}
        return Feeds(replace(self._program, inputs=self._given, values={**self.values, **values}))

    def validate_arrays(self, total: int, arguments: Sequence[Any]) -> list[np.ndarray]:
        """Return the validated arrays of a call, in order."""
        given = arguments[0] if len(arguments) == 1 and type(arguments[0]) is dict else None
        if given is not None and len(given) == len(self._given):  # the common case, in a microsecond per array
            arrays: list[Any] = [given.get(name) for name in self._given]
            if all(map(needs_no_conversion, arrays, self._feeds.inputs, self._shapes_given(total))):
                return arrays
        feeds = self._feeds_at(total)
        by_name = len(arguments) == 1 and isinstance(arguments[0], Mapping)
        return feeds.arrays_by_name(arguments[0]) if by_name else feeds.arrays_by_position(arguments)

    def _shapes_given(self, total: int) -> list[tuple[int, ...]]:
        """Return the shapes of a call's arrays at a length."""
        return [tuple([total if d == TOTAL else d for d in dims]) for dims in self._dims]

    def __repr__(self) -> str:
        """Return the name, the capacity and the number of caches on one line."""
        text = f"{self.name}: up to {counted(self.capacity, 'token')}, {counted(len(self.caches), 'cache')}"
        return one_line_repr("DecoderSession", text)


class Conversation(Unpicklable):
    """The caches of one conversation, at their full size, and the number of tokens that they contain.

    Calls of one conversation are made one at a time; any thread may make them.
    """

    other_way: ClassVar[str] = "Export its rows with rows(), and fill() another one with them."

    def __init__(self, session: DecoderSession) -> None:
        self.session = session
        self._length = 0
        self._busy = threading.Lock()
        self._arrays = [allocate_cache(session.values[c.past]) for c in session.caches]

    @property
    def length(self) -> int:
        """Number of tokens so far."""
        return self._length

    def run(self, *arguments: Any) -> Any:
        """Run the model on the next tokens and append their rows to the caches.

        Parameters
        ----------
        *arguments
            A mapping of names to arrays yields a dict of all outputs. Arrays in the order of the session's inputs yield
            the output or a tuple of outputs. Inputs and outputs are those of the model without its caches.

        Returns
        -------
        dict, array or tuple of arrays
            Outputs, as new NumPy arrays.

        Raises
        ------
        LaunchError
            If the conversation has no room for the tokens, another call of it is running, or an array does not fit. The
            conversation is then as before.
        """
        return self.session.meter.measure(self._run, arguments, None, False)

    def _run(self, arguments: tuple[Any, ...], out: None, on_device: bool) -> Any:
        session = self.session
        with self._exclusively():
            total = self._length + session.tokens_per_call
            if total > session.capacity:
                raise LaunchError(
                    f"{session.name}: expected at most {counted(session.capacity, 'token')} in a conversation, got "
                    f"{total}. Compile for a larger capacity, or start anew with reset()."
                )
            made = session.run_step(self._arrays, total, session.validate_arrays(total, arguments))
            self._length = total
        if len(arguments) == 1 and isinstance(arguments[0], Mapping):
            return dict(zip((t.name for t in session.outputs), made, strict=True))
        return made[0] if len(made) == 1 else tuple(made)

    __call__ = run

    def reset(self) -> None:
        """Forget all tokens."""
        self.truncate(0)

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first ``length``.

        Raises
        ------
        LaunchError
            If ``length`` is not between 0 and :attr:`length`.
        """
        with self._exclusively():
            expected = f"from 0 to {counted(self._length, 'token')}"
            count = validate_integer(length, "length", 0, expected=expected, error=LaunchError)
            if count > self._length:
                raise LaunchError(f"length: expected {expected}, got {count}.")
            self._length = count

    def rows(self) -> dict[str, np.ndarray]:
        """Return copies of the rows of all tokens so far, by the names of the model's inputs."""
        with self._exclusively():
            return {c.past: self._filled_rows(c, a, self._length).copy() for c, a in self._caches()}

    def fill(self, rows: Mapping[str, Any]) -> None:
        """Replace all tokens by those whose rows are given, such as rows that another runtime computed.

        Parameters
        ----------
        rows
            Array for each cache by the name of the model's input, as :meth:`rows` returns them.

        Raises
        ------
        LaunchError
            If a cache is missing or unknown, an array does not fit, or the arrays differ in length.
        """
        session = self.session
        names = {c.past for c in session.caches}
        if set(rows) != names:
            raise LaunchError(f"{session.name}: fill: expected the caches {', '.join(sorted(names))}, got "
                              f"{', '.join(sorted(map(str, rows))) or 'none'}.")  # fmt: skip
        arrays = {name: np.asarray(rows[name]) for name in names}
        lengths = {arrays[c.past].shape[c.axis] for c in session.caches if arrays[c.past].ndim > c.axis}
        length = max(lengths, default=0)
        if len(lengths) != 1 or length > session.capacity:
            raise LaunchError(
                f"{session.name}: fill: expected one length of at most {session.capacity} for all caches, got "
                f"{', '.join(map(str, sorted(lengths)))}."
            )
        for cache in session.caches:
            array, value = arrays[cache.past], session.values[cache.past]
            shape = (*value.shape[: cache.axis], length, *value.shape[cache.axis + 1 :])
            if array.shape != shape or array.dtype != numpy_dtype(value.dtype):
                raise LaunchError(
                    f"{session.name}: fill: '{cache.past}': expected {value.dtype} of shape {shape}, got "
                    f"{array.dtype} of shape {array.shape}."
                )
        with self._exclusively():
            for cache, target in self._caches():
                self._filled_rows(cache, target, length)[...] = arrays[cache.past]
            self._length = length

    def copy(self) -> Conversation:
        """Return another conversation with the same tokens, whose calls do not affect this one."""
        made = Conversation(self.session)
        with self._exclusively():
            for (cache, source), (_, target) in zip(self._caches(), made._caches(), strict=True):
                self._filled_rows(cache, target, self._length)[...] = self._filled_rows(cache, source, self._length)
            made._length = self._length
        return made

    def _caches(self) -> list[tuple[ResidentCache, np.ndarray]]:
        return list(zip(self.session.caches, self._arrays, strict=True))

    @staticmethod
    def _filled_rows(cache: ResidentCache, array: np.ndarray, length: int) -> np.ndarray:
        return array[(slice(None),) * cache.axis + (slice(length),)]

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise LaunchError(
                f"{self.session.name}: expected one call of a conversation at a time, got another while one is "
                "running. Start a conversation for each thread."
            )
        try:
            yield
        finally:
            self._busy.release()

    def __repr__(self) -> str:
        """Return the name and the number of tokens on one line."""
        of = counted(self.session.capacity, "token")
        return one_line_repr("Conversation", f"{self.session.name}: {self._length} of {of}")
