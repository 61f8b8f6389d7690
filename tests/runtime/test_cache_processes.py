"""Many processes, one cache: one builds and the others wait; any of them may be killed at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import roller
from roller.runtime.cache import KernelCache
from tests.runtime.cache_entries import make_entry, make_key

ROOT = Path(__file__).resolve().parents[2]
EXPR = roller.ops.elementwise("relu", (64,))


def start(code: str) -> subprocess.Popen[str]:
    # A process of its own, because this one may hold threads of other tests that a fork would not carry over.
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)


FIFTY = """
import json, os, roller
from roller.runtime.cache import CacheKey
expr = roller.ops.elementwise('relu', (64,))
CacheKey.of(expr, roller.load_spec('cpu').content_key, 1, {}), roller.compile  # once, for all children
gate, opened = os.pipe()
results, children = os.pipe(), []
for _ in range(50):
    pid = os.fork()
    if pid == 0:
        os.close(opened)
        os.read(gate, 1)  # returns for all at once, when the parent closes its end
        try:
            kernel = roller.compile(expr, device='cpu', top_k=2)
            text = json.dumps([kernel.artifact.to_dict()['checksum'], [c.measured_s for c in kernel.candidates]])
        except BaseException as err:
            text = json.dumps(['failed', repr(err)])
        os.write(results[1], (text + '\\n').encode())
        os._exit(0)
    children.append(pid)
os.close(opened)
for pid in children:
    os.waitpid(pid, 0)
os.close(results[1])
with os.fdopen(results[0]) as file:
    print(file.read())
"""


def test_fifty_processes_build_once() -> None:
    process = start(FIFTY)
    out, _ = process.communicate(timeout=120)
    answers = [json.loads(line) for line in out.splitlines() if line]
    assert len(answers) == 50
    assert answers[0][0] != "failed", answers[0]
    assert all(a == answers[0] for a in answers)
    cache = KernelCache()
    # Each build appends one measurement per candidate, and no two builds measure the same times at one moment.
    assert len({m.measured_at for m in cache.measurements()}) == 1
    assert [m.measured_s for m in cache.measurements()] == answers[0][1]
    assert cache.info()["entries"] == cache.info()["artifacts"] == 1
    assert list((cache.folder / "locks").glob("[0-9a-f]*[0-9a-f].lock")) == []


WRITERS = """
import os, random, signal, time
from dataclasses import replace
import roller
from roller.runtime.cache import KernelCache
from tests.runtime.cache_entries import make_entry, make_key
expr, rng = roller.ops.elementwise('relu', (64,)), random.Random(0)
entry, keys = make_entry(expr, measured_s=1e-3), [make_key(expr, str(n)) for n in range(20)]
launch = entry.artifact.launches[0]
killed, end = 0, time.monotonic() + 400  # a hang, not a busy machine
held = KernelCache()
while killed < 60 or (len(held.measurements()) < 60 or not held.rows()) and time.monotonic() < end:
    pid = os.fork()
    if pid == 0:
        cache, n = KernelCache(), killed * 1000
        while True:
            n += 1
            launches = (replace(launch, source=f'{n}' + 'x' * 100000),)
            one = replace(entry, artifact=replace(entry.artifact, launches=launches))
            if n % 3:
                cache.store(keys[n % 20], one)
            elif n % 7:
                cache.load_or_build(keys[n % 20], lambda: one)
            else:
                cache.clear()
    time.sleep(rng.uniform(0.002, 0.06))
    os.kill(pid, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
print(killed)
"""


def test_killed_writers_leave_a_consistent_cache() -> None:
    process = start(WRITERS)
    out, _ = process.communicate(timeout=500)
    assert int(out) >= 60
    cache = KernelCache()
    assert len(cache.measurements()) >= 60, "the writers were killed before they wrote anything"
    assert cache.database._is_intact()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [cache.load(make_key(EXPR, str(n))) for n in range(20)]
        assert cache.store(make_key(EXPR, "last"), make_entry(EXPR, "last"))
    kept = [e for e in found if e is not None]
    assert len(kept) == len(cache.rows()) - 1 > 0
    assert all(len(e.artifact.source) > 100_000 and len(e.candidates) == 3 for e in kept)
    cache.clear()
    assert [p for p in cache.folder.rglob("*") if p.is_file() and p.parent.name in ("tmp", "objects")] == []


HOLDER = """
import os, time
import roller
from roller.runtime.cache import KernelCache
from tests.runtime.cache_entries import make_key
def build():
    pid = os.fork()
    if pid == 0:
        time.sleep(300)
        os._exit(0)
    print(pid, flush=True)
    time.sleep(300)
KernelCache().load_or_build(make_key(roller.ops.elementwise('relu', (64,))), build)
"""


def test_lock_of_a_killed_builder_is_free_though_its_children_live() -> None:
    process = start(HOLDER)
    assert process.stdout is not None
    orphan = int(process.stdout.readline())
    try:
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.kill(orphan, 0)  # it is still there
        KernelCache().load_or_build(make_key(EXPR), lambda: make_entry(EXPR))
        assert Path(f"/proc/{orphan}/cmdline").read_bytes(), "it was not waited for"
    finally:
        os.kill(orphan, signal.SIGKILL)
        process.stdout.close()
