// The source with time and memory of each line in its gutter, and the batch as a literal in it.

const CM = window.CodeMirror;
const setMarks = CM.StateEffect.define();
const setLiteral = CM.StateEffect.define();
const setLinked = CM.StateEffect.define();

class LineMark extends CM.GutterMarker {
  constructor(mark) {
    super();
    Object.assign(this, mark);
  }
  eq(other) {
    return other.value === this.value && other.title === this.title && other.share === this.share && other.label === this.label && other.linked === this.linked;
  }
  toDOM() {
    const made = el(`div.mark.${this.what}${this.registered ? ".weights" : ""}${this.linked ? ".linked" : ""}`, {},
      el("span.fill", { style: { width: `${Math.min(100, 100 * this.share)}%` } }), number(this.value, this.unit, this.label, this.interval));
    made.lastChild.title = this.title;
    return made;
  }
}

const markField = CM.StateField.define({
  create: () => ({ time: CM.RangeSet.empty, memory: CM.RangeSet.empty }),
  update(sets, transaction) {
    if (transaction.docChanged) sets = { time: sets.time.map(transaction.changes), memory: sets.memory.map(transaction.changes) };
    for (const effect of transaction.effects) if (effect.is(setMarks)) sets = effect.value;
    return sets;
  },
});

function literalMark(from, to) {
  return from < to ? CM.Decoration.set([CM.Decoration.mark({ class: "batch-literal", inclusive: true }).range(from, to)]) : CM.Decoration.none;
}

const literalField = CM.StateField.define({
  create: () => CM.Decoration.none,
  update(found, transaction) {
    // What takes the literal's place is the literal, also where all of it is replaced, as an undo does.
    if (transaction.docChanged) found.between(0, transaction.startState.doc.length, (from, to) => void (found = literalMark(transaction.changes.mapPos(from, -1), transaction.changes.mapPos(to, 1))));
    for (const effect of transaction.effects) if (effect.is(setLiteral)) found = effect.value ? literalMark(...effect.value) : CM.Decoration.none;
    return found;
  },
  provide: (field) => CM.EditorView.decorations.from(field),
});

const linkedField = CM.StateField.define({
  create: () => CM.Decoration.none,
  update(found, transaction) {
    found = found.map(transaction.changes);
    for (const effect of transaction.effects)
      if (effect.is(setLinked)) found = CM.Decoration.set(effect.value.map((from) => CM.Decoration.line({ class: "linked-line" }).range(from)));
    return found;
  },
  provide: (field) => CM.EditorView.decorations.from(field),
});

/**
 * options: nonce, save(), changed(), lineHovered(line or null), linePicked(line), lineEntered(line), undone(update).
 * Returns {element, state(text), view, ...}: a view of CodeMirror and what the page does with it.
 */
function sourceEditor(options) {
  const gutterOf = (what, title) => CM.gutter({
    class: `cm-marks cm-${what}`, markers: (view) => view.state.field(markField)[what],
    initialSpacer: () => new LineMark({ what, value: 0, share: 0, unit: "", label: "predicted", title: "" }),
    domEventHandlers: {
      mouseover: (view, line) => (options.lineHovered(view.state.doc.lineAt(line.from).number), false),
      mouseout: () => (options.lineHovered(null), false),
      click: (view, line) => (options.linePicked(view.state.doc.lineAt(line.from).number), true),
    },
    renderEmptyElements: false,
  });
  const extensions = (label) => [
    CM.EditorView.cspNonce.of(options.nonce), CM.lineNumbers(), gutterOf("time"), gutterOf("memory"), markField, literalField, linkedField,
    CM.history(), CM.drawSelection(), CM.highlightActiveLine(), CM.bracketMatching(), CM.indentUnit.of("    "), CM.python(),
    CM.syntaxHighlighting(CM.classHighlighter), CM.EditorState.tabSize.of(4),
    CM.EditorView.contentAttributes.of({ "aria-label": `Source of ${label}`, spellcheck: "false", tabindex: "0" }),
    // Tab stays the key that leaves the editor; Enter indents.
    CM.keymap.of([{ key: "Mod-s", preventDefault: true, run: () => (options.save(), true) }, ...CM.defaultKeymap, ...CM.historyKeymap]),
    CM.EditorView.updateListener.of((update) => {
      if (update.docChanged) options.changed(update);
      if (update.selectionSet) options.lineEntered(update.state.doc.lineAt(update.state.selection.main.head).number);
    }),
  ];
  const view = new CM.EditorView({ state: CM.EditorState.create({ doc: "", extensions: CM.EditorView.cspNonce.of(options.nonce) }) });

  function literal() {
    let found = null;
    view.state.field(literalField, false)?.between(0, view.state.doc.length, (from, to) => void (found = [from, to]));
    return found;
  }

  const line = (number) => view.state.doc.line(Math.max(1, Math.min(view.state.doc.lines, number)));
  return {
    view, literal,
    stateOf: (text, label) => CM.EditorState.create({ doc: text, extensions: extensions(label) }),
    text: () => view.state.doc.toString(),
    /** Show marks: [{line, time, interval, bytes, registered, linked}] as shares of the whole. */
    mark(rows, whole, label) {
      const ranges = { time: [], memory: [] };
      for (const row of rows) {
        if (row.line > view.state.doc.lines) continue;
        const { from } = line(row.line);
        const at = (what, mark) => ranges[what].push(new LineMark({ what, label, linked: row.linked, ...mark }).range(from));
        if (row.time) at("time", { value: row.time, unit: "s", share: row.time / (whole.time || 1), interval: row.interval, title: `Line ${row.line}: ${text(row.time, "s")}, ${percent(row.time / (whole.time || 1))} of the time, ${label}, ${intervalWords(row.interval, "s")}` });
        if (row.bytes) at("memory", { value: row.bytes, unit: "bytes", share: row.bytes / (whole.bytes || 1), title: `Line ${row.line}: ${text(row.bytes, "bytes")} at the peak, ${percent(row.bytes / (whole.bytes || 1))}, ${label}, ${intervalWords(null, "bytes")}` });
        else if (row.registered) at("memory", { value: row.registered, unit: "bytes", share: row.registered / (whole.bytes || 1), registered: true, title: `Line ${row.line}: weights of ${text(row.registered, "bytes")} are made here, exact`, interval: "exact" });
      }
      view.dispatch({ effects: setMarks.of({ time: CM.RangeSet.of(ranges.time), memory: CM.RangeSet.of(ranges.memory) }) });
    },
    link(lines) {
      const known = lines.filter((number) => number <= view.state.doc.lines).sort((a, b) => a - b);
      view.dispatch({ effects: setLinked.of(known.map((number) => line(number).from)) });
    },
    setLiteral(span) {
      const found = literal();
      if (JSON.stringify(found) !== JSON.stringify(span)) view.dispatch({ effects: setLiteral.of(span) });
    },
    goTo(number, focus) {
      const { from } = line(number);
      view.dispatch({ selection: { anchor: from } });
      // Within the editor alone: the page stays where it is, unless the reader goes to the source.
      view.requestMeasure({
        read: () => view.lineBlockAt(from).top - view.scrollDOM.clientHeight / 2,
        write: (top) => (view.scrollDOM.scrollTop = top),
      });
      if (focus) view.focus();
    },
    /** Write a change of the disk: a step of the history, since earlier steps would be undone beside what it replaced. */
    replace(now) {
      const change = changeBetween(view.state.doc.toString(), now);
      if (change) view.dispatch({ changes: change, annotations: CM.isolateHistory.of("full") });
    },
    /** Write a number in place of the literal; all numbers from the first one to endLiteral() are one step of the history. */
    writeLiteral(value, isFirst) {
      const [from, to] = literal();
      // What is composed joins the step before, however long that is ago.
      view.dispatch({
        changes: { from, to, insert: value }, userEvent: isFirst ? "dial" : "input.type.compose", annotations: isFirst ? CM.isolateHistory.of("before") : [],
        effects: setLiteral.of([from, from + value.length]),
      });
    },
    endLiteral: () => view.dispatch({ annotations: CM.isolateHistory.of("full") }),
    undo: () => CM.undo(view),
    redo: () => CM.redo(view),
  };
}
