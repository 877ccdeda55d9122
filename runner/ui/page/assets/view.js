// What all timelines and charts share: the visible range of each axis, the cursor, the theme.

class View {
  constructor() {
    this.extents = { time: [0, 1], step: [0, 1] };
    this.zoomed = { time: null, step: null };
    this.axisOfMetrics = "time";
    this.listeners = new Set();
    this.cursorListeners = new Set();
    this.frame = 0;
  }

  range(axis) {
    return this.zoomed[axis] || this.extents[axis];
  }

  setExtent(axis, min, max) {
    this.extents[axis] = [min, max > min ? max : min + 1];
  }

  zoom(axis, min, max) {
    const [least, most] = this.extents[axis];
    const smallest = (most - least) * 1e-6;
    const width = Math.min(Math.max(max - min, smallest), most - least);
    const start = Math.min(Math.max(min, least), most - width);
    this.zoomed[axis] = width >= (most - least) * 0.9999 ? null : [start, start + width];
    this.changed();
  }

  pan(axis, share) {
    const [min, max] = this.range(axis);
    this.zoom(axis, min + (max - min) * share, max + (max - min) * share);
  }

  scale(axis, factor) {
    const [min, max] = this.range(axis);
    const [middle, half] = [(min + max) / 2, ((max - min) / 2) * factor];
    this.zoom(axis, middle - half, middle + half);
  }

  reset(axis) {
    this.zoomed[axis] = null;
    this.changed();
  }

  // Once a frame, whatever asked for it.
  changed() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      for (const listener of this.listeners) listener();
    });
  }

  point(axis, value, source) {
    for (const listener of this.cursorListeners) listener(axis, value, source);
  }

  // Keys of a focused timeline or chart; returns whether one was taken.
  key(event, axis) {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    const actions = {
      ArrowLeft: () => this.pan(axis, -0.2),
      ArrowRight: () => this.pan(axis, 0.2),
      ArrowUp: () => this.scale(axis, 0.6),
      ArrowDown: () => this.scale(axis, 1 / 0.6),
      "+": () => this.scale(axis, 0.6),
      "=": () => this.scale(axis, 0.6),
      "-": () => this.scale(axis, 1 / 0.6),
      Escape: () => this.reset(axis),
      0: () => this.reset(axis),
    };
    if (!actions[event.key]) return false;
    actions[event.key]();
    event.preventDefault();
    return true;
  }
}

function zoomTools(view, axisOf) {
  const axis = () => axisOf();
  return h("div", { class: "tools", role: "group", "aria-label": "Zoom" },
    button("+", "Zoom in", () => view.scale(axis(), 0.6)),
    button("−", "Zoom out", () => view.scale(axis(), 1 / 0.6)),
    button("←", "Earlier", () => view.pan(axis(), -0.3)),
    button("→", "Later", () => view.pan(axis(), 0.3)),
    button("Reset", "Show all", () => view.reset(axis())));
}

function prefersDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function themeToggle(view) {
  const recalled = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (recalled === "dark" || recalled === "light") document.documentElement.dataset.theme = recalled;
  const toggle = button("", "Switch between dark and light", () => {
    const theme = prefersDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("theme", theme); } catch { /* a file may have no storage */ }
    show();
  });
  toggle.className = "theme";
  function show() {
    toggle.textContent = prefersDark() ? "Light" : "Dark";
    themeChanged(view);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
  return toggle;
}

function themeChanged(view) {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["text", "muted", "line", "surface", "band", "accent", "on", "good", "bad", "warn", "unseen"]) {
    COLOURS[name] = style.getPropertyValue(`--${name}`).trim();
  }
  COLOURS.runs = [0, 1, 2, 3, 4, 5, 6, 7].map((n) => style.getPropertyValue(`--run${n}`).trim());
  view.themed = (view.themed || 0) + 1;
  view.changed();
}

const COLOURS = { runs: [] };
const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 4], [1, 3], [10, 2, 2, 2]];
const SPACINGS = [0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
  10800, 21600, 43200, 86400, 172800, 432000]; // of ticks, in seconds
const FONT = "12px system-ui, sans-serif";

function gutter() {
  return innerWidth < 600 ? 76 : 92;
}
const RIGHT = 32;
