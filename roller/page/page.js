// Starts the page: reads the data and shows the view that the data name.

const VIEWS = { profile: showProfile, kernel: showKernel, model: showModel, benchmark: showBenchmark };

const THEMES = ["light dark", "light", "dark"];
document.getElementById("theme").addEventListener("click", (event) => {
  const root = document.documentElement;
  const next = (THEMES.indexOf(root.style.colorScheme || THEMES[0]) + 1) % THEMES.length;
  root.style.colorScheme = THEMES[next];
  event.target.textContent = `Theme: ${next ? THEMES[next] : "system"}`;
});

(async () => {
  const main = document.getElementById("main");
  try {
    const data = await readData();
    main.replaceChildren();
    VIEWS[data.view](main, data);
  } catch (error) {
    main.replaceChildren(el("h1", {}, "This report cannot be shown"), el("p", {}, String(error)));
    if (typeof DecompressionStream === "undefined")
      main.append(el("p", {}, "It needs a browser of 2023 or later (DecompressionStream)."));
    throw error;
  }
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
