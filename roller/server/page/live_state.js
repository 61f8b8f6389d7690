// What the server told and what the reader chose, in one place; views listen to topics of it.

/**
 * Topics: "connection", "status" (options, live, progress, error, batch), the stages "profile", "difference",
 * "devices", "curve", "hints" and "whatif", and of the reader "node" (opened or chosen), "hover", "batch" (dialled).
 */
function liveState() {
  const listeners = new Map();
  const state = {
    connection: "connecting", connectionText: "", hello: null, head: null, error: null,
    results: {}, // stage -> {revision, options, data}
    model: null, // of the profile
    lines: null, // key of a node -> [a, b, c, d] over the batch
    opened: 0, chosen: 0, hovered: null, // nodes of the model
    adopted: null, // name of the constant that is the batch, where the file's own is no literal
    dialled: null, // batch while the dial is moved, until the profile of it is there
    isTurning: false, // from the dial's first move until what it wrote is saved
    on(topics, act) {
      for (const topic of topics.split(" ")) listeners.set(topic, [...(listeners.get(topic) || []), act]);
    },
    tell(...topics) {
      for (const act of new Set(topics.flatMap((topic) => listeners.get(topic) || []))) act();
    },
    data: (stage) => state.results[stage]?.data ?? null,
    /** Whether a stage is of an earlier save, or of other options than those that are chosen. */
    isStale(stage) {
      const known = state.results[stage], { head } = state;
      return Boolean(known && head && (known.revision < head.revision || wayOf(stage, known.options) !== wayOf(stage, head.options)));
    },
  };
  return state;
}

/** What of the options decides a stage; rows of devices are told apart by their names. */
function wayOf(stage, { devices, batch, amp, checkpoint, changes }) {
  return JSON.stringify([stage === "devices" ? null : devices[0], batch, amp, checkpoint, stage === "whatif" ? changes : null]);
}

/** Mark what is of an earlier save, of other options, or of the profile's batch while another one is dialled. */
function markStale(state, mark, stage) {
  const dialled = isDialled(state);
  mark.hidden = !dialled && !state.isStale(stage);
  mark.textContent = dialled ? `at batch ${state.model.profile.batch}` : "not up to date";
}

/** Where the batch is written: the literal of the entry file, or the constant that was adopted, wherever it is by now. */
function literalOf(state) {
  const { batch } = state.head;
  return batch.error ? batch.candidates.find((one) => one.name === state.adopted) || null : batch;
}

/** Replace what an element holds, as el() takes children. */
function fill(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** Take a message of the server into the state. */
function takeMessage(state, message) {
  if (message.type === "hello") {
    state.hello = message;
    state.tell("hello");
  } else if (message.type === "state") {
    const { results, error, ...head } = message;
    if (state.head && state.head.against !== head.against) delete state.results.difference;
    state.head = head;
    state.error = error;
    // The file has another batch than its latest profile: what the lines say is shown until the next profile.
    if (state.model && !state.isTurning && head.status !== "failed" && state.results.profile.revision < head.revision && head.options.batch === null && head.batch.value) {
      state.dialled = head.batch.value;
      state.tell("batch");
    }
    state.tell("status");
    if (results) for (const [stage, result] of Object.entries(results)) takeResult(state, stage, result);
  } else if (message.type === "progress") {
    state.head.progress = message.progress;
    state.tell("progress");
  } else if (message.type === "result") takeResult(state, message.stage, message);
  else if (message.type === "refused") {
    state.refused = message.text;
    state.tell("refused");
  }
}

/** Ask for other options; what is chosen before the server has answered is of these. */
function chooseOptions(state, server, changed) {
  const options = { ...state.head.options, ...changed };
  if (server.send({ type: "options", options })) state.head.options = options;
  state.tell("status");
}

function takeResult(state, stage, { revision, options, data }) {
  const known = state.results[stage];
  state.results[stage] = { revision, options, data };
  if (known && known.revision === revision && JSON.stringify(known.data) === JSON.stringify(data)) // the same, e.g. after a reconnect
    return JSON.stringify(known.options) === JSON.stringify(options) || state.tell("status");
  if (stage === "profile") {
    const before = state.model;
    state.model = stepModel(data);
    state.opened = before ? state.model.find(before.keys[state.opened]) : 0;
    state.chosen = before ? state.model.find(before.keys[state.chosen]) : 0;
    state.hovered = null;
    if (!state.isTurning && revision === state.head?.revision) state.dialled = null;
  }
  if (stage === "curve") {
    const of = state.results.profile;
    const lines = data && data.node_lines;
    // Lines are of the nodes of one profile; by their keys they serve the next ones until theirs come.
    if (lines && of && of.revision === revision && lines.length === state.model.count)
      state.lines = new Map(lines.map((line, node) => [state.model.keys[node], line]).filter(([, line]) => line.length));
    else if (data && data.error) state.lines = null;
  }
  state.tell(stage);
}

/** A profile for the page: its nodes with children, exact sums, and keys that last from one profile to the next. */
function stepModel(data) {
  const nodes = data.profile.nodes, count = nodes.length;
  const parent = nodes.map((node) => node.parent);
  const children = childrenOf(parent);
  const time = nodes.map((node) => exactSum(Object.values(node.seconds || {}).map(([wall]) => wall)));
  const bytesOf = nodes.map((node) => Object.values(node.held_bytes || {}).reduce((sum, one) => sum + one, 0));
  time[0] = data.profile.iteration_s;
  const intervals = [[data.profile.lower_s, data.profile.upper_s], ...data.intervals.slice(1)];
  const keys = [""], byKey = new Map([["", 0]]);
  for (let node = 1; node < count; node++) {
    let key = `${keys[parent[node]]}\n${nodes[node].kind} ${nodes[node].name}`;
    for (let place = 1; byKey.has(key); place++) key = `${keys[parent[node]]}\n${nodes[node].kind} ${nodes[node].name} ${place}`;
    keys.push(key);
    byKey.set(key, node);
  }
  return {
    data, profile: data.profile, label: data.label, nodes, count, parent, children, keys, time, bytes: bytesOf, intervals,
    /** The node of a key, or the nearest one above it that is there. */
    find(key) {
      for (let rest = key || ""; rest; rest = rest.slice(0, rest.lastIndexOf("\n"))) if (byKey.has(rest)) return byKey.get(rest);
      return 0;
    },
  };
}

/** A sum without the rounding of its steps, as Python's math.fsum has it. */
function exactSum(values) {
  const parts = [];
  for (let value of values) {
    let kept = 0;
    for (let part of parts) {
      if (Math.abs(value) < Math.abs(part)) [value, part] = [part, value];
      const high = value + part, low = part - (high - value);
      if (low) parts[kept++] = low;
      value = high;
    }
    parts.length = kept;
    parts.push(value);
  }
  return parts.reduceRight((sum, part) => sum + part, 0);
}

/** Whether values of the lines over the batch are shown in place of the profile's. */
function isDialled(state) {
  return state.dialled !== null && state.model !== null && state.dialled !== state.model.profile.batch;
}

/** Seconds and bytes of a node, at the batch that is shown. */
function valuesOf(state, node) {
  const { model } = state;
  if (!isDialled(state)) return [model.time[node], model.bytes[node]];
  const kept = state.atBatch;
  if (kept?.batch !== state.dialled || kept.model !== model || kept.lines !== state.lines) state.atBatch = valuesAt(state);
  return [state.atBatch.time[node], state.atBatch.bytes[node]];
}

/** Interval of the time of a node; of bytes that of the whole alone is known. None is known at a batch that is dialled. */
function intervalOf(state, node) {
  return isDialled(state) ? null : state.model.intervals[node];
}

function bytesIntervalOf(state, node) {
  const { total_error_bytes: error, total_bytes: total } = state.model.profile;
  return node === 0 && error && !isDialled(state) ? [total - error, total + error] : null;
}

/** Where the numbers that are shown come from: those of another batch are computed, whatever the profile's are. */
function labelOf(state) {
  const { label } = state.model;
  return isDialled(state) && label !== "calibrated" ? "predicted" : label;
}

/** Bytes of a node by kind, at the batch that is shown: leaves hold one kind each. */
function kindsOf(state, node) {
  const { model } = state;
  const held = model.nodes[node].held_bytes || {};
  if (!isDialled(state)) return held;
  const found = Object.fromEntries(Object.keys(held).map((kind) => [kind, 0]));
  const todo = [node];
  while (todo.length) {
    const at = todo.pop(), own = Object.entries(model.nodes[at].held_bytes || {});
    if (model.children[at].length && own.length > 1) todo.push(...model.children[at]);
    else for (const [kind, size] of own) found[kind] += (valuesOf(state, at)[1] * size) / (model.bytes[at] || 1);
  }
  return found;
}

/** Ends of a sum of intervals; null where one of them is not known. */
function sumOfIntervals(intervals) {
  return intervals.length && intervals.every(Boolean) ? [0, 1].map((end) => exactSum(intervals.map((one) => one[end]))) : null;
}

/**
 * All nodes by their lines over the batch. Children share what their parent takes: outside of the batches that the lines
 * are of, some would be below nothing; and parts without a line, such as kernels, keep their share.
 */
function valuesAt(state) {
  const { model, dialled, lines } = state;
  const [time, bytesOf] = [model.time, model.bytes].map((known, place) => {
    const found = new Float64Array(model.count), weight = new Float64Array(model.count);
    for (let node = 0; node < model.count; node++) {
      const line = lines?.get(model.keys[node]);
      weight[node] = line ? Math.max(0, line[2 * place] * dialled + line[2 * place + 1]) : -1;
    }
    found[0] = weight[0] < 0 ? known[0] : weight[0];
    for (let node = 0; node < model.count; node++) {
      const below = model.children[node];
      if (!below.length) continue;
      const isKnown = below.every((child) => weight[child] >= 0);
      const part = (child) => (isKnown ? weight[child] : known[child]);
      const whole = below.reduce((sum, child) => sum + part(child), 0);
      for (const child of below) found[child] = whole ? (found[node] * part(child)) / whole : 0;
    }
    return found;
  });
  return { batch: dialled, model, lines, time, bytes: bytesOf };
}

/** What is said of a node's place: the line that it is, or that calls it. */
function lineAround(model, node) {
  for (; node > 0; node = model.parent[node]) if (model.nodes[node].kind === "line") return model.nodes[node].name;
  return null;
}

function moduleAround(model, node) {
  for (; node > 0; node = model.parent[node]) if (model.nodes[node].kind === "module") return model.nodes[node].name;
  return "";
}

/** Time and bytes of each line as the profile's parts say: name -> {time, interval, bytes, registered}; of one module's instance if named. */
function lineMarks(state, module) {
  const found = new Map();
  const { model } = state;
  if (!model) return found;
  const dialled = isDialled(state);
  const sums = dialled ? dialledLines(state, module) : null;
  for (const line of model.data.lines) {
    const name = `${line.file}:${line.line}`;
    let time = line.wall_s, size = line.held_bytes, registered = line.registered_bytes, interval = line.interval_s;
    if (sums) [[time, size], interval] = [sums.get(name) || [0, 0], null];
    else if (module) {
      const own = line.instances.filter((one) => one.module === module);
      const within = own.length ? own : line.instances.filter((one) => one.module.startsWith(`${module}.`));
      time = exactSum(within.map((one) => one.wall_s));
      interval = sumOfIntervals(within.map((one) => one.interval_s));
      size = within.reduce((sum, one) => sum + one.held_bytes, 0);
      registered = 0;
    }
    if (time || size || registered) found.set(name, { time, interval, bytes: size, registered });
  }
  return found;
}

function dialledLines(state, module) {
  const { model } = state;
  const sums = new Map(), exact = new Map(), around = new Map();
  const walk = (node, within) => {
    const { kind, name } = model.nodes[node];
    const isLine = kind === "line";
    const inner = kind === "module" ? name : within;
    if (isLine && (!module || inner === module || inner.startsWith(`${module}.`))) {
      const [time, size] = valuesOf(state, node);
      const target = module && inner === module ? exact : sums;
      if (!around.get(name)) {
        const sum = target.get(name) || [0, 0];
        target.set(name, [sum[0] + time, sum[1] + size]);
      }
    }
    if (isLine) around.set(name, (around.get(name) || 0) + 1);
    for (const child of model.children[node]) walk(child, inner);
    if (isLine) around.set(name, around.get(name) - 1);
  };
  walk(0, "");
  return new Map([...sums, ...exact]);
}

/** What a step takes at the batch that is shown, with where it is from: a computed batch exactly, else the line. */
function stepAt(state) {
  const { profile } = state.model;
  if (!isDialled(state))
    return { batch: profile.batch, time: profile.iteration_s, interval: [profile.lower_s, profile.upper_s], throughput: profile.throughput_per_s,
      throughputInterval: state.model.data.throughput_interval, bytes: profile.total_bytes, bytesInterval: bytesIntervalOf(state, 0), label: labelOf(state), fits: state.model.data.fits };
  const found = state.data("curve"), curve = found && found.curve, batch = state.dialled;
  const point = curve && curve.computed.find((one) => one.batch === batch);
  if (point) return { batch, time: point.iteration_s, interval: null, throughput: point.throughput, bytes: point.total_bytes, label: labelOf(state), fits: point.fits };
  const line = curve && curve.line;
  if (!line) return { batch, time: null, interval: null, throughput: null, bytes: null, label: labelOf(state), fits: true };
  const time = line.a * batch + line.b, fits = !curve.largest || batch <= curve.largest;
  return { batch, time, interval: null, throughput: fits && time > 0 ? (batch * profile.devices) / time : 0, bytes: Math.round(valuesOf(state, 0)[1]), label: labelOf(state), fits };
}
