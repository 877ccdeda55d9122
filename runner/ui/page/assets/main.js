// The page: its sections in order.

class Page {
  constructor(root, data) {
    this.view = new View();
    this.theme = themeToggle(this.view);
    this.charts = new Charts(this.view);
    this.runs = data.runs.map((run) => this.runParts(run));
    this.view.listeners.add(() => { for (const { timeline } of this.runs) timeline.draw(); });
    this.view.cursorListeners.add((axis, value) => {
      if (axis !== "time") return;
      for (const { timeline } of this.runs) {
        timeline.pointed = value;
        timeline.draw();
      }
    });
    setExtents(this.view, data.runs);
    this.charts.set(data.runs);
    this.build(root, data);
    this.view.changed();
  }

  build(root, data) {
    const parts = this.runs;
    const ids = parts.map((part) => part.id);
    const several = ids.length > 1;
    const made = `Made by runner, ${wallTime(data.made_at)}. Clock times are this machine's.`;
    const section = (id, title, ...children) => h("section", { id }, h("h2", {}, title), ...children);
    const each = (name) => parts.map((part) => (several
      ? h("details", {}, h("summary", {}, part.id), part[name].element) : part[name].element));
    const links = [["timeline", "Timeline"], ["metrics", "Metrics"], ["load", "Load"], ["events", "Events"],
      ["logs", "Logs"], ["configuration", "Configuration"]];
    root.replaceChildren(
      h("header", { class: "top" },
        h("nav", { "aria-label": "Sections" }, links.map(([id, text]) => h("a", { href: `#${id}` }, text))),
        h("div", { class: "tools" }, this.theme)),
      h("main", { id: "main", tabindex: -1 },
        h("h1", { class: several ? null : "hidden" }, several ? `${ids.length} runs` : "A run"),
        h("section", { id: "differences" }, differences({ rows: data.differences, runs: ids })),
        h("div", { class: several ? "side-by-side" : null }, parts.map((part) => part.element)),
        section("timeline", "Timeline", zoomTools(this.view, () => "time"),
          h("p", { class: "hint" }, "Drag to zoom, double-click to see all. Times are since the launch."),
          parts.map((part) => (several ? [h("h3", {}, part.id), part.timeline.element] : part.timeline.element)).flat()),
        section("metrics", "Metrics", h("div", { class: "tools" }, this.charts.byStep,
          zoomTools(this.view, () => this.view.axisOfMetrics)), this.charts.noMetrics, this.charts.metrics),
        section("load", "Load", h("div", { class: "tools" }, this.charts.picks, zoomTools(this.view, () => "time")),
          this.charts.noLoads, this.charts.notes.element, this.charts.loads),
        section("events", "Events", each("events")),
        section("logs", "Logs", each("logs")),
        section("configuration", "Configuration", each("config"))),
      h("footer", {}, h("span", { class: "muted" }, made)));
  }

  runParts(run) {
    const { id } = run;
    const parts = {
      id,
      element: h("article", { class: "run" },
        h("div", {}, runHeader(run)), h("div", {}, failure(run)), h("div", {}, facts(run)), h("div", {}, commands(run))),
      timeline: new Timeline(this.view, id),
      events: new EventTable(this.view, id),
      logs: new Filtered(`Filter logs of ${id}`, logs),
      config: new Filtered(`Filter the configuration of ${id}`, config),
    };
    parts.timeline.set(run.timeline);
    parts.events.set(run.timeline);
    parts.logs.set(run, selectLogs);
    parts.config.set(run, selectConfig);
    return parts;
  }
}

const data = JSON.parse(document.getElementById("data").textContent);
new Page(document.getElementById("page"), data);
document.documentElement.dataset.ready = "true";
