// The page: its sections in order, and how they take new data.

class Page {
  constructor(root, isLive, home) {
    [this.root, this.isLive] = [root, isLive];
    this.view = new View();
    this.theme = themeToggle(this.view);
    this.charts = new Charts(this.view);
    this.home = home ? h("a", { href: home }, "All runs") : null;
    this.made = h("span", { class: "muted" });
    this.runs = new Map();
    this.differences = new Block(h("section", { id: "differences" }), differences);
    this.view.listeners.add(() => { for (const { timeline } of this.runs.values()) timeline.draw(); });
    this.view.cursorListeners.add((axis, value) => {
      if (axis !== "time") return;
      for (const { timeline } of this.runs.values()) {
        timeline.pointed = value;
        timeline.draw();
      }
    });
  }

  build(ids, live) {
    this.runs = new Map(ids.map((id) => [id, this.runParts(id)]));
    const parts = [...this.runs.values()];
    const several = ids.length > 1;
    const section = (id, title, ...children) => h("section", { id }, h("h2", {}, title), ...children);
    const each = (name) => parts.map((part) => (several
      ? h("details", { "data-key": `${part.id} ${name}` }, h("summary", {}, part.id), part[name].element) : part[name].element));
    const links = [["timeline", "Timeline"], ["metrics", "Metrics"], ["load", "Load"], ["events", "Events"],
      ["logs", "Logs"], ["configuration", "Configuration"]];
    this.root.replaceChildren(
      h("header", { class: "top" },
        h("nav", { "aria-label": "Sections" }, this.home, links.map(([id, text]) => h("a", { href: `#${id}` }, text))),
        h("div", { class: "tools" }, live ? live.state : null, this.theme)),
      h("main", { id: "main", tabindex: -1 },
        h("h1", { class: several ? null : "hidden" }, several ? `${ids.length} runs` : "A run"),
        this.differences.element,
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
      h("footer", {}, this.made));
  }

  runParts(id) {
    const [header, failed, known, next] = [h("div"), h("div"), h("div"), h("div")];
    return {
      id,
      element: h("article", { class: "run" }, header, failed, known, next),
      header: new Block(header, (run) => runHeader(run, this.isLive)),
      failure: new Block(failed, failure),
      facts: new Block(known, facts),
      commands: new Block(next, commands),
      timeline: new Timeline(this.view, id),
      events: new EventTable(this.view, id),
      logs: new Filtered(`Filter logs of ${id}`, logs),
      config: new Filtered(`Filter the configuration of ${id}`, config),
    };
  }

  update(data, live) {
    const ids = data.runs.map((run) => run.id);
    if (JSON.stringify(ids) !== JSON.stringify([...this.runs.keys()])) this.build(ids, live);
    setExtents(this.view, data.runs);
    this.differences.update({ rows: data.differences, runs: ids });
    for (const run of data.runs) {
      const part = this.runs.get(run.id);
      const { timeline, metrics, load, logs: _logs, config: _config, ...others } = run;
      part.header.update(others);
      part.facts.update(others);
      part.failure.update({ id: run.id, failure: run.failure });
      part.commands.update({ commands: run.commands });
      part.timeline.set(timeline);
      part.events.set(timeline);
      part.logs.set(run, selectLogs);
      part.config.set(run, selectConfig);
    }
    this.charts.set(data.runs);
    this.made.textContent = `Made by runner, ${wallTime(data.made_at)}. Clock times are this machine's.`;
    this.view.changed();
  }
}

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const live = read("live");
const page = new Page(document.getElementById("page"), Boolean(live), live && live.home);
const follower = live ? new Live(live, (data) => page.update(data, follower)) : null;
page.update(read("data"), follower);
document.documentElement.dataset.ready = "true";
