// The panel of the source: which file, what is not saved yet, and marks that follow the part that is opened.

/** Returns {element, open(file, line, focus), openPlace("file:line"), dial}: dial is what the batch's dial writes with. */
function sourcePanel(state, server) {
  const files = new Map(); // name -> {raw, digest, editorState}
  let shown = null, loading = null;
  const picker = el("select", { "aria-label": "File", onchange: () => open(picker.value) });
  const dirty = el("span.dirty", { role: "status" });
  const saveButton = el("button", { type: "button", disabled: true, title: "Ctrl S", onclick: () => save() }, "Save");
  const undoButton = el("button", { type: "button", title: "Ctrl Z", onclick: () => editor.undo() }, "Undo");
  const reading = el("p.reading", { "aria-live": "polite" }, "");
  const conflict = el("div.conflict", { role: "alert", hidden: true });
  const editor = sourceEditor({
    nonce: document.querySelector('meta[name="style-nonce"]').content,
    save: () => save(), changed: (update) => changed(update), linePicked: (line) => pick(line), lineEntered: (line) => read(line),
    lineHovered(line) {
      state.hovered = line === null ? null : nodeOfLine(line);
      state.tell("hover");
    },
  });
  const holder = el("div.editor", {}, el("div.editor-frame", {}, editor.view.dom));
  const scope = el("span.scope.faint", {});
  const element = el("section.panel.source", { "aria-label": "Source" },
    el("div.panel-head", {}, el("h2.sr", {}, "Source"), picker, dirty, scope, el("span.push", {}), undoButton, saveButton),
    conflict, holder, reading);

  function rows() {
    return shown === null ? new Map() : lineMarks(state, state.model && moduleAround(state.model, state.opened));
  }

  function draw() {
    if (!state.model || shown === null) return;
    const module = moduleAround(state.model, state.opened), label = labelOf(state);
    const [time, size] = valuesOf(state, state.opened);
    const found = [...rows()].filter(([name]) => name.slice(0, name.lastIndexOf(":")) === shown)
      .map(([name, mark]) => ({ line: Number(name.slice(name.lastIndexOf(":") + 1)), ...mark })).sort((a, b) => a.line - b.line);
    editor.mark(found, { time, bytes: size }, label);
    scope.textContent = module ? `of ${module}` : "";
    scope.title = module ? `Numbers beside lines are those of ${module}` : "";
    element.classList.toggle("stale", state.isStale("profile"));
    const names = [...new Set([state.hello.entry, ...state.model.data.lines.map((line) => line.file)])];
    if (shown && !names.includes(shown)) names.push(shown);
    if (names.join("\n") !== [...picker.options].map((one) => one.value).join("\n")) fill(picker, ...names.map((name) => el("option", { value: name }, name)));
    picker.value = shown;
    read(editor.view.state.doc.lineAt(editor.view.state.selection.main.head).number);
  }

  function linkLines() {
    const node = state.hovered ?? (state.chosen || null);
    const name = node === null || !state.model ? null : lineAround(state.model, node);
    const own = name && name.slice(0, name.lastIndexOf(":")) === shown;
    editor.link(own ? [Number(name.slice(name.lastIndexOf(":") + 1))] : []);
  }

  /** Tell the numbers of a line in words: what the gutter shows to the eye. */
  function read(line) {
    const mark = rows().get(`${shown}:${line}`);
    if (!mark) return fill(reading, `Line ${line}`);
    const label = labelOf(state);
    const said = [
      mark.time ? [number(mark.time, "s", label, mark.interval), hasInterval(mark.interval) ? [" (", spreadText(mark.interval, "s", label), ")"] : ""] : null,
      mark.bytes ? [number(mark.bytes, "bytes", label), " at the peak"] : null, mark.registered ? ["weights of ", number(mark.registered, "bytes", label, "exact")] : null,
    ].filter(Boolean);
    fill(reading, `Line ${line}: `, said.map((part, place) => [place ? ", " : "", part]));
  }

  /** The part with the most time whose line this is; within what is opened, if there is one. */
  function nodeOfLine(line) {
    const { model } = state, name = `${shown}:${line}`;
    if (!model) return null;
    const all = model.nodes.map((_, node) => node).filter((node) => model.nodes[node].kind === "line" && model.nodes[node].name === name);
    const isWithin = (node) => node === state.opened || (node > 0 && isWithin(model.parent[node]));
    const within = all.filter(isWithin);
    return ordered(within.length ? within : all, (node) => model.time[node] + model.bytes[node] * 1e-20)[0] ?? null;
  }

  function pick(line) {
    const node = nodeOfLine(line);
    editor.goTo(line, false);
    if (node !== null) state.show(node);
  }

  async function load(name) {
    const answer = await server.ask({ type: "open", file: name });
    take(answer);
    return answer;
  }

  function take({ file, text: raw, digest }) {
    const edited = raw.replace(/\r\n?/g, "\n"), known = files.get(file);
    if (!known) files.set(file, { raw, digest, editorState: editor.stateOf(edited, file) });
    else if (known.digest !== digest) {
      if (isDirty(file)) return warn(file, raw, digest);
      Object.assign(known, { raw, digest });
      if (file === shown) editor.replace(edited);
      else known.editorState = editor.stateOf(edited, file);
    }
    if (file === shown) refresh();
  }

  function isDirty(name) {
    const known = files.get(name);
    return withEnds(name === shown ? editor.text() : known.editorState.doc.toString(), known.raw) !== known.raw;
  }

  function warn(file, raw, digest) {
    const settle = async (act) => {
      await open(file); // the reader may look at another one by now
      Object.assign(files.get(file), { raw, digest });
      conflict.hidden = true;
      act();
      refresh();
    };
    conflict.hidden = false;
    fill(conflict, `${file} was changed on disk, and here. `,
      el("button", { type: "button", onclick: () => settle(() => editor.replace(raw.replace(/\r\n?/g, "\n"))) }, "Take the file's text"), " ",
      el("button", { type: "button", onclick: () => settle(save) }, "Write mine over it"));
  }

  async function open(name, line = null, focus = false) {
    loading = name;
    try {
      if (!files.has(name)) await load(name);
    } catch (error) {
      return state.say(error.message);
    }
    if (loading !== name) return;
    if (shown !== name) {
      if (shown !== null) files.get(shown).editorState = editor.view.state;
      shown = name;
      editor.view.setState(files.get(name).editorState);
      refresh();
    }
    if (line !== null) editor.goTo(line, focus);
  }

  function refresh() {
    const changed = isDirty(shown);
    saveButton.disabled = !changed;
    dirty.textContent = changed ? "not saved" : "";
    showLiteral();
    draw();
    linkLines();
  }

  /** Mark the literal where the disk's text has it; while the text here is another one it moves with the edits. */
  function showLiteral() {
    if (!state.head || shown !== state.hello.entry || isDirty(shown)) return;
    const batch = literalOf(state);
    if (!batch) return editor.setLiteral(null);
    const { raw } = files.get(shown);
    const span = batch.span.map((place) => toEditor(raw, place));
    if (/^[\d_xXoObBa-fA-F]+$/.test(raw.slice(...batch.span))) editor.setLiteral(span);
  }

  let undone = 0; // undos of the batch that are being saved: the next one need not wait for them
  function changed(update) {
    const isAsked = asked !== null && update.startState.doc.toString() === asked.text; // it is on its way to the disk
    const wasClean = undone > 0 || isAsked || saveButton.disabled && dirty.textContent === "";
    refresh();
    const isBack = update.transactions.some((one) => one.isUserEvent("undo") || one.isUserEvent("redo"));
    // Undo of what was saved is saved too where it is the batch: the file has the bytes that it had.
    if (!isBack || !wasClean || shown !== state.hello.entry || !isOfLiteral(update)) return;
    undone++;
    save().finally(() => undone--);
    state.dialled = Number(editor.text().slice(...editor.literal())) || null;
    state.tell("batch");
  }

  function isOfLiteral(update) {
    const span = editor.literal();
    let within = Boolean(span);
    update.changes.iterChanges((_fromOld, _toOld, from, to) => (within = within && from >= span[0] - 1 && to <= span[1] + 1));
    return within;
  }

  let saving = Promise.resolve(), asked = null; // the text of the last save, until it has ended
  /** Save what is shown; saves follow one another, each on the one before. */
  function save() {
    const name = shown, mine = (asked = { text: editor.text() });
    saving = saving.then(async () => {
      const known = files.get(name), now = withEnds(name === shown ? editor.text() : known.editorState.doc.toString(), known.raw);
      if (now === known.raw) return;
      try {
        const { digest } = await server.ask({ type: "save", file: name, text: now, base: known.digest });
        Object.assign(known, { raw: now, digest });
      } catch (error) {
        state.say(error.message);
        await load(name).catch(() => null);
      }
      if (name === shown) refresh();
    }).finally(() => asked === mine && (asked = null));
    return saving;
  }

  state.on("hello", () => {
    if (!state.hello.source.error) take(state.hello.source);
    if (shown === null) open(state.hello.entry);
    else if (shown !== state.hello.entry) load(shown).catch(() => null);
  });
  let revision = 0;
  state.on("status", () => {
    if (state.head.revision !== revision) {
      revision = state.head.revision;
      for (const name of files.keys()) saving.then(() => load(name)).catch(() => null);
    }
    if (shown !== null) refresh();
  });
  state.on("profile curve node batch", () => shown !== null && draw());
  state.on("hover node", linkLines);

  return {
    element, editor, open, save,
    openPlace: (place, focus) => open(place.slice(0, place.lastIndexOf(":")), Number(place.slice(place.lastIndexOf(":") + 1)), focus),
    lineText: (place) => {
      const file = place.slice(0, place.lastIndexOf(":")), known = files.get(file);
      return known ? (known.raw.split(/\r\n?|\n/)[Number(place.slice(place.lastIndexOf(":") + 1)) - 1] || "").trim() : "";
    },
    /** The entry file in the editor, for the dial. */
    async forDial() {
      await open(state.hello.entry);
      const span = editor.literal();
      if (span) editor.goTo(editor.view.state.doc.lineAt(span[0]).number, false);
      return span;
    },
  };
}
