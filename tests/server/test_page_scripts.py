"""Functions of the page that need no browser, run by Node."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "roller" / "server" / "page"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node")


def said(expressions: list[str], *scripts: str, before: str = "") -> list:
    """Return the values of JavaScript expressions, after some of the page's scripts."""
    text = "\n".join((PAGE / name).read_text("utf-8") for name in scripts)
    program = f"{before}\n{text}\nconsole.log(JSON.stringify([{', '.join(expressions)}]))"
    done = subprocess.run([str(NODE), "-"], input=program, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_files_line_ends_come_back_after_an_edit():
    raw = "a = 1\r\nb = 2\nc = 16\r\n"
    edited = "a = 1\nb = 2\nc = 128\n"
    longer = edited + "d = 4\n"
    calls = [
        f"withEnds({json.dumps(edited)}, {json.dumps(raw)})",
        f"withEnds({json.dumps(longer)}, {json.dumps(raw)})",
        "withEnds('x', 'y')",
        f"toEditor({json.dumps(raw)}, {raw.index('16')})",
        "changeBetween('batch=16)', 'batch=128)')",
        "changeBetween('aXb', 'ab')",
        "changeBetween('a', 'a')",
    ]
    kept, longer, plain, place, change, cut, same = said(calls, "source_text.js")
    assert kept == raw.replace("16", "128")
    assert longer == "a = 1\r\nb = 2\nc = 128\r\nd = 4\r\n", "others keep their ends, a new line ends like most"
    assert plain == "x" and place == raw.replace("\r", "").index("16")
    assert change == {"from": 7, "to": 8, "insert": "28"} and cut == {"from": 1, "to": 2, "insert": ""} and same is None


def test_sums_are_those_of_pythons_fsum():
    rows = [[0.1] * 10, [1e16, 1.0, -1e16], [], [9.21811777752554e-06, 0.006743611870664537, 0.013044187792889326]]
    assert said([f"exactSum({json.dumps(row)})" for row in rows], "live_state.js") == [math.fsum(row) for row in rows]


def test_parts_share_what_their_parent_takes_over_the_batch():
    """Lines of parts beyond the batches that they are of may fall below nothing."""
    model = {
        "time": [3, 2, 1, 2],
        "bytes": [0, 0, 0, 0],
        "count": 4,
        "children": [[1, 2], [3], [], []],
        "keys": list("abcd"),
    }
    state = f"""{{dialled: 1, model: {json.dumps(model)}, lines: new Map([["a", [1, 2, 0, 0]], ["b", [2, 1, 0, 0]],
        ["c", [1, -4, 0, 0]]])}}"""
    (times,) = said([f"Array.from(valuesAt({state}).time)"], "live_state.js")
    assert times == [3, 3, 0, 3], "c takes nothing, b all of a, and d, whose line is not known, its share of b"


#: Sockets, clocks and timers that a test sets, in place of the browser's.
CLOCK = """
let now = 0; const sockets = [], timers = new Map(), heard = {}, told = [];
Date.now = () => now;
Math.random = () => 0.5;
globalThis.setTimeout = (act, wait) => (timers.set(timers.size + 1, { act, wait, at: now + wait }), timers.size);
globalThis.clearTimeout = (timer) => timers.has(timer) && (timers.get(timer).act = null);
globalThis.location = { href: "http://127.0.0.1:1/", search: "?token=x" };
globalThis.addEventListener = (name, act) => (heard[name] = act);
globalThis.document = { hidden: false, addEventListener: (name, act) => (heard[name] = act) };
globalThis.WebSocket = class {
  constructor() { this.readyState = 0; sockets.push(this); }
  send() {}
};
WebSocket.OPEN = 1; WebSocket.CLOSED = 3;
const last = () => sockets[sockets.length - 1];
const greet = (one) => ((one.readyState = 1), one.onopen(), one.onmessage({ data: '{"type": "hello"}' }));
const close = (one, code, reason = "") => ((one.readyState = 3), one.onclose({ code, reason }));
const pending = () => [...timers.values()].filter((one) => one.act);
const tick = () => { const [due] = pending(); now += due.wait; const { act } = due; due.act = null; act(); };
const start = () => connect({ tell: () => 0, status: (...what) => told.push(what) });
"""


def connection(script: str) -> list:
    """Return what a script of steps tells of a connection: its states, sockets made, and timers that wait."""
    steps = f"(() => {{ start(); {script}; return [told, sockets.length, pending().map((one) => one.wait)]; }})()"
    return said([steps], "connection.js", before=CLOCK)[0]


def test_a_server_that_closes_again_and_again_is_asked_less_and_less():
    told, sockets, waits = connection(
        "for (const n of [1, 2, 3, 4, 5, 6, 7]) greet(last()), close(last(), 4408, 'slow'), tick()"
    )
    assert [what for what in told if what[0] == "waiting"] == [
        ["waiting", seconds, "slow"] for seconds in (0.25, 0.5, 1, 2, 4, 8, 8)
    ], "with the server's reason"
    assert (sockets, waits) == (8, [])
    told, *_ = connection(
        "for (const n of [1, 2, 3]) greet(last()), now += 60000, close(last(), 1006, 'of the browser'), tick()"
    )
    assert [what for what in told if what[0] == "waiting"] == [["waiting", 0.25, ""]] * 3, "it was sound for a minute"


def test_an_old_connection_leaves_the_new_one_alone_and_a_refused_page_stays_refused():
    script = "close(last(), 1006); heard.online(); heard.online(); close(sockets[0], 1006); heard.visibilitychange()"
    assert connection(script) == [[["waiting", 0.25, ""]], 2, []]
    told, sockets, waits = connection("close(last(), 1006); tick(); close(last(), 4403, 'x'); heard.online()")
    assert (told[-1][0], sockets, waits) == ("refused", 2, [])
    assert told[-1][1] == "This address is from an earlier run. Open the one that roller serve printed last."


#: Elements as plain objects.
ELEMENTS = """
const el = (tag, attributes, ...children) => ({ tag, hidden: false, ...attributes, children });
const fill = (parent, ...children) => (parent.children = children);
const digits = String, text = String;
const number = (value) => ({ textContent: String(value), classList: { add: () => 0 } });
const words = (name) => name.replaceAll("_", " ");
"""


def test_what_did_not_fit_is_not_said_beside_a_later_error():
    state = """(() => {
        const acts = [], state = { on: (topics, act) => acts.push(act), error: null, placeLink: String,
            model: { profile: { out_of_memory: "train.py:3: too large" } } };
        const [failure, unfit] = messages(state), seen = [];
        for (const error of [null, { text: "train.py:1: wrong", problems: [], output: [] }, null]) {
            state.error = error;
            for (const act of acts) act();
            seen.push([failure.hidden, unfit.hidden]);
        }
        return seen;
    })()"""
    (seen,) = said([state], "messages.js", before=ELEMENTS)
    assert seen == [[True, False], [False, True], [True, False]]


def test_changes_and_batches_are_said_in_words():
    blocks = "Recompute(blocks=('layers.0', 'layers.1', 'layers.2', 'layers.3'))"
    calls = [
        f"hintName({json.dumps(blocks)})",
        "hintName(\"Recompute(blocks=('a.0', 'b.1'))\")",
        "hintName(\"Recompute(blocks=('a.9', 'a.10', 'a.12'))\")",
        "hintName(\"Recompute(blocks=('stem',))\")",
        "hintName('AMP() + ZeroTime(phase=optimizer)')",
        "signed(0, 's', '').textContent",
    ]
    run, others, gap, one, plain, nothing = said(calls, "change_panel.js", before=ELEMENTS)
    assert (run, others, gap) == ("Recompute layers.0 to layers.3", "Recompute a.0, b.1", "Recompute a.9, a.10, a.12")
    assert (one, plain, nothing) == ("Recompute stem", "AMP and Zero time (phase=optimizer)", "0 s")
    assert said(["batchText(1.418)", "batchText(0.2)", "batchText(45.5)"], "batch_dial.js", before=ELEMENTS) == [
        "1",
        "below 1",
        "46",
    ]


def test_lines_that_hardly_change_are_counted_and_not_listed():
    rows = [
        {"name": name, "delta_s": s, "made_delta_s": made, "delta_bytes": size, "made_delta_bytes": 0}
        for name, s, made, size in (
            ("a", -0.5, 0, 0),
            ("b", 0, 0, 8),
            ("c", 0, 0, 2**20),
            ("d", 0, 0.001, 0),
            ("e", 1e-9, 0, 0),
        )
    ]
    few = [rows[1]]
    calls = [f"notable({json.dumps(some)}).map((row) => row.name)" for some in (rows, few, [])]
    assert said(calls, "difference_panel.js") == [["a", "c", "d"], ["b"], []]


#: A script whose batch cannot be changed, one with a candidate, and an entry file: the dial is shown where it can act.
DIAL = """
const classes = new Set();
const el = (tag, attributes, ...children) => ({
  tag, ...attributes, children, addEventListener: () => 0, setAttribute: () => 0,
  replaceChildren(...given) { this.children = given; },
  classList: { toggle: (name, on) => (on ? classes.add(name) : classes.delete(name)) },
});
const number = (value) => String(value), onWidth = () => 0, svg = el;
const textOf = (one) => {
  if (Array.isArray(one)) return one.map(textOf).join("");
  return one && typeof one === "object" ? textOf(one.children) : one || "";
};
function says(curve, batch, adopted = null) {
  const acts = [], state = {
    on: (topics, act) => topics === "status" && acts.push(act), data: (stage) => (stage === "curve" ? curve : null),
    isStale: () => false, linked: (said) => said, adopted, model: null, hello: { entry: "train.py" },
    head: { batch, options: { batch: null }, status: "ready" },
  };
  const panel = dialPanel(state, {}, {}).element;
  for (const act of acts) act();
  return [textOf(panel.children[panel.children.length - 1]), classes.has("no-dial")];
}
"""


def test_why_a_batch_cannot_be_changed_is_said_in_place_of_the_dial():
    candidate = '{ error: "train.py: no number.", line: 1, candidates: [{ name: "SIZE", value: 16 }] }'
    none = '{ error: "train.py: no number.", line: 1, candidates: [] }'
    curve = '{ error: "curve: expected a DataLoader, got none." }'
    calls = [
        f"says({curve}, {none})",
        f"says({{}}, {none})",
        f"says({curve}, {candidate}, 'SIZE')",
        f"says({curve}, {{ value: 8 }})",
    ]
    shown = said(calls, "live_state.js", "batch_dial.js", before=DIAL)
    assert shown[0] == ["curve: expected a DataLoader, got none.", True]
    assert shown[1] == ["The dial writes no literal. train.py: no number. It changes only the profile.", False]
    assert [is_hidden for _, is_hidden in shown[2:]] == [False, False]
