// Devices side by side: time, memory, and what a run of them takes and costs.

const OLD_PRICE_DAYS = 180;

function devicePanel(state, server) {
  const search = el("input", { type: "search", role: "combobox", placeholder: "Add a device", "aria-label": "Add a device", "aria-expanded": "false", "aria-controls": "device-list", "aria-autocomplete": "list", autocomplete: "off" });
  const options = el("ul.options", { id: "device-list", role: "listbox", "aria-label": "Devices", hidden: true });
  const epochs = runInput("Epochs", "epochs", 90), samples = runInput("Samples of an epoch", "samples", 1281167);
  const rows = el("div.devices", {});
  const stale = el("span.stale-mark", { hidden: true }, "not up to date");
  const element = el("section.panel.devices-panel", { "aria-label": "Devices" },
    el("div.panel-head", {}, el("h2", {}, "Devices"), stale, el("span.push", {}), el("div.combo", {}, search, options)),
    el("div.run-inputs", {}, el("span.faint", {}, "A run of"), epochs, el("span.faint", {}, "epochs ×"), samples, el("span.faint", {}, "samples")), rows);
  let active = -1, offered = [];

  function runInput(label, name, usual) {
    const made = el("input", { type: "number", min: 1, step: 1, "aria-label": label, value: localStorage.getItem(`roller ${name}`) || usual });
    made.addEventListener("input", () => (localStorage.setItem(`roller ${name}`, made.value), draw()));
    return made;
  }

  function choose(devices) {
    const seen = new Set(), kept = devices.filter(([name, count]) => !seen.has(`${name} ${count}`) && seen.add(`${name} ${count}`));
    chooseOptions(state, server, { devices: kept });
  }

  // The picker

  function offer() {
    const wanted = search.value.trim().toLowerCase().split(/\s+/);
    const chosen = new Set(state.head.options.devices.map(([name]) => name));
    offered = state.hello.devices.filter((one) => !chosen.has(one.name) && wanted.every((word) => `${one.name} ${one.description}`.toLowerCase().includes(word)));
    const rank = ({ name }) => (name === wanted[0] ? 0 : name.startsWith(wanted[0]) ? 1 : name.includes(wanted[0]) ? 2 : 3);
    offered.sort((a, b) => rank(a) - rank(b));
    active = Math.min(active, offered.length - 1);
    fill(options, ...offered.map((one, place) => {
      const price = state.hello.prices?.devices[one.name];
      return el("li", { role: "option", id: `device-${place}`, "aria-selected": String(place === active), onpointerdown: (event) => (event.preventDefault(), add(place)) },
        el("strong", {}, one.name), number(one.capacity_bytes, "bytes", "recorded", "exact"), price ? number(price.per_hour, `${state.hello.prices.currency}/h`, "recorded", "exact") : el("span"),
        el("span.faint", {}, one.description));
    }));
    if (!offered.length) options.append(el("li.faint", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, "No other device matches."));
    open(true);
  }

  function open(is) {
    options.hidden = !is;
    search.setAttribute("aria-expanded", String(is));
    if (is && active >= 0) search.setAttribute("aria-activedescendant", `device-${active}`), options.children[active].scrollIntoView({ block: "nearest" });
    else search.removeAttribute("aria-activedescendant");
  }

  function add(place) {
    if (!offered[place]) return;
    choose([...state.head.options.devices, [offered[place].name, 1]]);
    search.value = "";
    active = -1;
    open(false);
  }

  search.addEventListener("input", () => ((active = 0), offer()));
  search.addEventListener("focus", () => state.hello && offer());
  search.addEventListener("blur", () => open(false));
  search.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) active = Math.max(0, Math.min(offered.length - 1, active + step)), offer();
    else if (event.key === "Enter") add(Math.max(0, active));
    else if (event.key === "Escape") (search.value = ""), open(false);
    else return;
    event.preventDefault();
  });

  // The rows

  function draw() {
    if (!state.head) return;
    const found = state.data("devices") || [];
    const known = new Map(found.map((row) => [`${row.device} ${row.devices}`, row]));
    fill(rows, ...state.head.options.devices.map(([name, count], place) => card(name, count, place, known.get(`${name} ${count}`))));
    markStale(state, stale, "devices");
  }

  function card(name, count, place, row) {
    const chosen = state.head.options.devices;
    const others = chosen.filter((_, at) => at !== place);
    const many = el("input.many", { type: "number", min: 1, max: 4096, step: 1, value: count, "aria-label": `Number of ${name}`, onchange: () => {
      const now = Math.round(Number(many.value));
      if (now >= 1 && now <= 4096) choose(chosen.map((one, at) => (at === place ? [name, now] : one)));
    } });
    const head = el("div.device-head", {}, many, el("span.faint", {}, "×"), el("strong", {}, name),
      place === 0 ? el("span.badge", {}, "profiled") : el("button.small", { type: "button", onclick: () => choose([[name, count], ...others]) }, "Profile this one"),
      el("span.push", {}),
      chosen.length > 1 ? el("button.small", { type: "button", "aria-label": `Remove ${name}`, onclick: () => choose(others) }, "×") : null);
    if (!row) return el("article.device", { "aria-label": name, "data-device": name }, head, el("p.faint", {}, "Computing ..."));
    if (row.error) return el("article.device", { "aria-label": name, "data-device": name }, head, el("p.faint", {}, state.linked(row.error)));
    const interval = [row.lower_s, row.upper_s];
    return el(`article.device${row.fits ? "" : ".unfit"}`, { "aria-label": name, "data-device": name }, head,
      el("dl", {},
        pair("step", number(row.iteration_s, "s", row.kind, interval), spreadText(interval, "s", row.kind)),
        row.fits ? pair("throughput", number(row.throughput_per_s, "samples/s", row.kind, row.throughput_interval)) : null,
        pair("memory", number(row.total_bytes, "bytes", row.kind), capacityOf(name, row)),
        ...(row.fits ? cost(name, count, row) : [])),
      row.fits ? null : el("p.verdict", {}, "Does not fit: ", state.linked(row.out_of_memory)));
  }

  function capacityOf(name, row) {
    const device = state.hello.devices.find((one) => one.name === name);
    return device ? ["of ", number(device.capacity_bytes, "bytes", "recorded", "exact")] : null;
  }

  function cost(name, count, row) {
    const all = Number(epochs.value) * Number(samples.value);
    if (!(all > 0) || !row.throughput_per_s) return [];
    const hours = all / row.throughput_per_s / 3600;
    const spread = [row.lower_s, row.upper_s].map((one) => (hours * one) / row.iteration_s);
    const prices = state.hello.prices, price = prices?.devices[name];
    const time = pair("the run", number(hours, "h", row.kind, spread), spreadText(spread, "h", row.kind));
    if (!price) return [time, pair("price", el("span.faint", {}, prices ? "none in the file of prices" : "Start with --prices FILE to see prices"))];
    const perHour = price.per_hour * count, days = (Date.now() - Date.parse(price.date)) / 864e5;
    return [time,
      pair("costs", number(hours * perHour, prices.currency, row.kind, spread.map((one) => one * perHour)), spreadText(spread.map((one) => one * perHour), prices.currency, row.kind)),
      pair("price", number(perHour, `${prices.currency}/h`, "recorded", "exact"), el(`span${days > OLD_PRICE_DAYS ? ".old" : ".faint"}`, { title: price.source }, days > OLD_PRICE_DAYS ? `of ${price.date}: ${Math.floor(days)} days old` : `of ${price.date}`))];
  }

  state.on("hello status devices", draw);
  state.on("batch profile", () => markStale(state, stale, "devices"));
  return { element };
}

function pair(name, value, more) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value, more ? [" ", el("span.faint", {}, more)] : null));
}

/** An interval in words: what the number beside it may be. */
function spreadText(interval, unit, label) {
  return interval && interval[1] > interval[0] ? [number(interval[0], unit, label), " – ", number(interval[1], unit, label)] : null;
}
