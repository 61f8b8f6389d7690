// Starts the page: one state, one connection, and the panels.

(() => {
  const state = liveState();
  const server = connect({
    tell: (message) => takeMessage(state, message),
    status(what, more, why) {
      state.connection = what;
      state.connectionText = what === "waiting" ? `${why || "no connection"} – again in ${digits(more, 2)} s` : what === "refused" ? more : "";
      state.tell("connection");
    },
  });
  state.linked = (said, place) => linkedText(state, said, place);
  state.placeLink = (place) => placeLink(state, place);
  const source = sourcePanel(state, server);
  state.openPlace = (place) => source.openPlace(place, true);
  const where = wherePanel(state, source);
  const dial = dialPanel(state, server, source);
  document.body.prepend(pageHead(state, server));
  document.getElementById("main").replaceChildren(
    ...messages(state), summary(state),
    el("div.columns", {}, source.element, el("div.column", {}, where.element, dial.element)),
    el("div.below", {}, el("div.column", {}, devicePanel(state, server).element, differencePanel(state, server).element), changePanel(state, server).element));
  state.on("connection", () => document.body.classList.toggle("cut", state.connection !== "open"));
  state.on("profile", () => document.documentElement.dataset.ready ||= String(Math.round(performance.now())));
  new PerformanceObserver((list) => list.getEntries().forEach((one) => one.name === "first-contentful-paint" && (document.documentElement.dataset.painted = Math.round(one.startTime)))).observe({ type: "paint", buffered: true });
})();
