"""Random programs on a made-up device that keeps CUDA's rules, as the profiles that Kineto would write of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

#: Of the made-up device: from a call to its kernel, between kernels, from an event to who waits for it, and to return.
LATENCY_US, GAP_US, EVENT_US, RETURN_US = 9.0, 1.2, 1.5, 5.0
OPERATORS = ("aten::addmm", "aten::relu", "aten::convolution", "aten::_foreach_add_", "aten::copy_")


@dataclass
class Program:
    """A training loop that is run while it is drawn.

    Parameters
    ----------
    seed
        Of what is drawn.
    """

    seed: int
    rows: list[dict] = field(default_factory=list)
    free: dict[int, float] = field(default_factory=dict)  # by stream, when its last task ends
    now: dict[int, float] = field(default_factory=dict)  # by thread
    number: int = 0

    def __post_init__(self):
        self.draw = random.Random(self.seed)
        self.start = self.draw.choice((0.0, 1000.0, 1.7e15))
        self.main, self.backward = 11, 12
        self.now = {self.main: self.start, self.backward: self.start}
        self.tells_waits = self.draw.random() < 0.5
        self.hip = self.draw.random() < 0.3
        self.slow_first = self.draw.random() < 0.5
        self.streams = (7, *self.draw.sample((9, 13, 20), self.draw.randint(0, 3)))
        self.kernels_us = self.draw.choice((8.0, 40.0, 300.0))  # the host is the bottleneck, or the device
        self.seen: set[str] = set()

    def row(self, category, name, start, took, lane, **arguments):
        self.rows.append(
            {"ph": "X", "cat": category, "name": name, "ts": start, "dur": took, "args": arguments, **lane}
        )

    def call(self, name, took, thread, **arguments):
        self.number += 1
        at = self.now[thread]
        name = name.replace("cuda", "hip") if self.hip else name
        self.row("cuda_runtime", name, at, took, {"pid": 1, "tid": thread}, correlation=self.number, **arguments)
        self.now[thread] = at + took
        return self.number, at

    def device(self, category, name, start, took, stream, number, **more):
        lane = {"pid": 0, "tid": f"stream {stream}"}
        self.row(category, name, start, took, lane, device=0, stream=stream, correlation=number, **more)
        self.free[stream] = start + took

    def begins(self, stream, ready):
        return max(ready, self.free.get(stream, float("-inf")) + GAP_US)

    def launch(self, thread, stream=7, kernels=1, category="kernel", name="gemm"):
        draw = self.draw
        took, ready = draw.uniform(3.0, 6.0), LATENCY_US
        if self.slow_first and name not in self.seen and draw.random() < 0.3:
            took = draw.uniform(300.0, 3000.0)  # loads a module
            ready = took + LATENCY_US - 4.5
        self.seen.add(name)
        if kernels > 1:
            took, ready = took + 2.0 * kernels, ready + 2.0 * kernels
        number, at = self.call("cudaGraphLaunch" if kernels > 1 else "cudaLaunchKernel", took, thread)
        for _ in range(kernels):
            took = draw.uniform(0.3, 2.0) * self.kernels_us
            self.device(category, name, self.begins(stream, at + ready), took, stream, number)

    def copy(self, thread, stream, to_device):
        """Copy pageable memory: the call returns when it is done."""
        number, at = self.number + 1, self.now[thread]
        start = self.begins(stream, at + LATENCY_US)
        took = self.draw.uniform(5.0, 200.0)
        self.call("cudaMemcpyAsync", start + took + RETURN_US - at, thread)
        kind = "HtoD (Pageable -> Device)" if to_device else "DtoH (Device -> Pageable)"
        self.device("gpu_memcpy", f"Memcpy {kind}", start, took, stream, number, bytes=int(took * 1e4))

    def wait_event(self, thread, stream, of):
        """Let a stream wait for what another has been given."""
        record, _ = self.call("cudaEventRecord", 1.0, thread)
        number, at = self.call("cudaStreamWaitEvent", 1.0, thread)
        if self.tells_waits:
            lane = {"pid": 0, "tid": f"stream {stream}"}
            self.row("cuda_sync", "Stream Wait Event", at, 0.0, lane, device=0, stream=stream, correlation=number,
                     wait_on_stream=of, wait_on_cuda_event_record_corr_id=record)  # fmt: skip
        if of in self.free:
            # as if the stream had been busy until then
            until = self.free[of] + EVENT_US - GAP_US
            self.free[stream] = max(self.free.get(stream, until), until)

    def synchronise(self, thread, stream=None):
        until = max([self.now[thread] + 1.0, *(end for s, end in self.free.items() if stream in (None, s))])
        name = "cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize"
        number, at = self.call(name, until + RETURN_US - self.now[thread], thread)
        if stream is not None:
            self.row("cuda_sync", "Stream Sync", at, 0.0, {"pid": 0, "tid": 7}, device=0, stream=stream,
                     correlation=number)  # fmt: skip

    def hold(self, stream, us):
        """Give a stream work that the profile does not show."""
        self.free[stream] = max(self.free.get(stream, self.now[self.main]), self.now[self.main]) + us

    def think(self, thread, most=25.0):
        self.now[thread] += self.draw.uniform(0.0, most)

    def mark(self, name, since, thread, category="user_annotation", **arguments):
        self.row(category, name, since, self.now[thread] - since, {"pid": 1, "tid": thread}, **arguments)

    def phase(self, thread, count, stream=7):
        draw = self.draw
        for _ in range(count):
            self.think(thread)
            since = self.now[thread]
            kind, operator = draw.random(), draw.choice(OPERATORS)
            if kind < 0.05 and len(self.streams) > 1:
                other = draw.choice(self.streams[1:])
                self.wait_event(thread, other, stream)
                self.launch(thread, other, category="kernel", name="ncclKernel_AllReduce_RING" if draw.random() < 0.5
                            else "side")  # fmt: skip
                if draw.random() < 0.7:
                    self.wait_event(thread, stream, other)
                    self.launch(thread, stream)
            elif kind < 0.08:
                self.copy(thread, stream, draw.random() < 0.7)
            elif kind < 0.10:
                self.launch(thread, stream, kernels=draw.randint(2, 30), name="captured")
            else:
                self.launch(thread, stream, name=operator)
            self.mark(
                operator, since, thread, "cpu_op", **{"Input Dims": [[8, 8], [8, 8]], "Input type": ["float"] * 2}
            )

    def step(self, number, marked=True):
        main, begin = self.main, self.now[self.main]
        since = begin
        self.now[main] += self.draw.uniform(5.0, 400.0)
        self.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", since, main)
        self.copy(main, 7, True)
        self.phase(main, self.draw.randint(5, 25))
        self.now[self.backward] = max(self.now[self.backward], self.now[main] + 15.0)
        self.phase(self.backward, self.draw.randint(5, 25))
        self.now[main] = self.now[self.backward] + 20.0
        since = self.now[main]
        self.phase(main, self.draw.randint(1, 6))
        self.mark("Optimizer.step#SGD.step", since, main)
        if self.draw.random() < 0.3:
            self.synchronise(main, self.draw.choice((None, 7)))
        if marked:
            self.mark(f"ProfilerStep#{number}", begin, main)
        self.think(main)


def program(seed, *, steps=None, marked=True):
    """Return a program that has run."""
    found = Program(seed)
    drawn = found.draw.randint(1, 6)
    for number in range(drawn if steps is None else steps):
        found.step(number, marked)
    found.synchronise(found.main)
    return found


def rounded(rows):
    """Return rows in whole microseconds, as older profiles have them."""
    for row in rows:
        end = round(row["ts"] + row["dur"])
        row["ts"] = round(row["ts"])
        row["dur"] = end - row["ts"]
    return rows
