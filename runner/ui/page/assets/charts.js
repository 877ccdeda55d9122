// The charts: metrics by time or by step, and the load of nodes and GPUs, of all runs at once.

const LOADS = [
  ["gpu.utilization", "GPU utilisation", "%"], ["gpu.memory_used", "GPU memory", "B"],
  ["gpu.power_w", "GPU power", "W"], ["gpu.temperature_c", "GPU temperature", "°C"],
  ["cpu", "CPU", "%"], ["memory_used", "Memory", "B"],
  ["net_received", "Network, received", "B/s"], ["net_sent", "Network, sent", "B/s"],
  ["disk_read", "Disk, read", "B/s"], ["disk_written", "Disk, written", "B/s"],
];

class Charts {
  constructor(view) {
    this.view = view;
    this.charts = new Map();
    this.metrics = h("div", { class: "charts" });
    this.loads = h("div", { class: "charts" });
    this.noMetrics = h("p", { class: "muted" }, "No metrics are on record.");
    this.noLoads = h("p", { class: "muted" }, "No samples of GPUs and hosts are on record.");
    this.byStep = h("button", { type: "button", "aria-pressed": "false", onclick: () => this.switchAxis() }, "By step");
    this.picks = h("span", { class: "picks" });
    this.notes = new Block(h("div"), (lines) => lines.map((text) => h("p", { class: "muted" }, text)));
    view.listeners.add(() => this.redraw());
    view.cursorListeners.add((axis, value, source) => {
      if (source instanceof Timeline) for (const chart of this.charts.values()) chart.point(axis, value);
    });
    addEventListener("beforeprint", () => { for (const chart of this.charts.values()) chart.draw(); });
    new ResizeObserver(() => this.redraw()).observe(this.metrics);
    new ResizeObserver(() => this.redraw()).observe(this.loads);
  }

  redraw() {
    for (const chart of this.charts.values()) if (chart.visible) chart.draw();
  }

  switchAxis() {
    const axis = this.view.axisOfMetrics === "time" ? "step" : "time";
    this.view.axisOfMetrics = axis;
    this.byStep.setAttribute("aria-pressed", String(axis === "step"));
    this.set(this.runs);
    this.view.changed();
  }

  set(runs) {
    this.runs = runs;
    this.setPicks();
    this.setMetrics();
    this.setLoads();
  }

  chart(place, key, title, unit) {
    if (!this.charts.has(key)) {
      this.charts.set(key, new Chart(this.view, title, unit));
      place.append(this.charts.get(key).element);
    }
    return this.charts.get(key);
  }

  setMetrics() {
    const names = [...new Set(this.runs.flatMap((run) => run.metrics.map((metric) => metric.name)))];
    this.noMetrics.hidden = names.length > 0;
    for (const name of names) {
      const found = this.runs.map((run) => run.metrics.find((metric) => metric.name === name));
      const lines = found.flatMap((metric, run) => (metric ? this.metricLines(metric, run) : []));
      const unit = found.find(Boolean).unit;
      const chart = this.chart(this.metrics, `metric ${name}`, name, unit);
      chart.set(this.view.axisOfMetrics, lines, found.map((metric, run) => this.summary(metric, run)).filter(Boolean).join("; "));
    }
  }

  metricLines(metric, run) {
    return metric.lines.map(({ own, spread, attempt }) => {
      const label = [this.runs.length > 1 ? this.runs[run].id : "", metric.lines.length > 1 ? `attempt ${attempt + 1}:` : ""]
        .filter(Boolean).join(" ");
      const hasSpread = spread.lo.length > 0;
      const band = hasSpread ? spread : own;
      const [line, edge] = [this.ordered(own), this.ordered(band)];
      return { run, label, x: line.x, v: line.v, lo: edge.lo, hi: edge.hi, bx: hasSpread ? edge.x : null };
    }).filter((line) => line.x.length);
  }

  // The points of a series along the axis, each place once: the last one counts.
  ordered(series) {
    const along = this.view.axisOfMetrics === "step" ? series.s : series.t;
    const places = new Map();
    along.forEach((place, at) => { if (place !== null) places.set(place, at); });
    const x = [...places.keys()].sort((a, b) => a - b);
    const column = (values) => (values.length ? x.map((place) => values[places.get(place)]) : []);
    return { x, v: column(series.v), lo: column(series.lo), hi: column(series.hi) };
  }

  summary(metric, run) {
    if (!metric) return "";
    const who = this.runs.length > 1 ? `${this.runs[run].id}: ` : "";
    const of = metric.ranks > 1 ? `rank ${metric.rank}, band over ${metric.ranks} ranks: ` : "";
    return `${who}${of}last ${amount(metric.last)}, least ${amount(metric.least)}, most ${amount(metric.most)}`;
  }

  setPicks() {
    this.picked = this.picked || new Map();
    const shown = JSON.stringify(this.runs.map((run) => run.load.sources.map((source) => source.name)));
    if (shown === this.pickable) return;
    this.pickable = shown;
    this.picks.replaceChildren(...this.runs.filter((run) => run.load.sources.length > 1).map((run) => {
      const select = h("select", {
        "aria-label": `Nodes of ${run.id}`,
        onchange: () => { this.picked.set(run.id, select.value); this.setLoads(); },
      });
      fill(select, run.load.sources[0].name, run.load.sources.slice(1).map((source) => [source.name, source.name]));
      select.value = this.picked.get(run.id) || "";
      return h("label", {}, this.runs.length > 1 ? `${run.id} ` : "of ", select);
    }));
  }

  setLoads() {
    const picked = this.runs.map(({ id, load }) =>
      load.sources.find((source) => source.name === this.picked.get(id)) || load.sources[0]);
    this.noLoads.hidden = picked.some(Boolean);
    this.notes.update(this.runs.flatMap((run) => loadNotes(run)
      .map((text) => (this.runs.length > 1 ? `${run.id}: ${text}` : text))));
    for (const [figure, title, unit] of LOADS) {
      const known = picked.some((source) => source && source.figures[figure]);
      if (!known && !this.charts.has(figure)) continue;
      const lines = picked.flatMap((source, run) => {
        const column = source && source.figures[figure];
        if (!column) return [];
        const { t, step } = this.runs[run].load;
        const label = [this.runs.length > 1 ? this.runs[run].id : "", source.name].filter(Boolean).join(" ");
        return [{ run, label, x: t, v: column.v, lo: column.lo, hi: column.hi, bx: null, gap: step }];
      });
      this.chart(this.loads, figure, title, unit).set("time", lines, lines.some((line) => line.lo.length) ? "mean, with the least and the most" : "");
    }
    this.redraw();
  }
}

const MOST_NOTES = 8;

function loadNotes({ load }) {
  const lowered = load.throttled.map(([gpu, from, to, why]) =>
    `${gpu}: clocks lowered (${why}), ${duration(from)} to ${duration(to)}`);
  const more = lowered.length - MOST_NOTES;
  return [...(load.errors || []), ...lowered.slice(0, MOST_NOTES), ...(more > 0 ? [`clocks lowered ${more} more times`] : [])];
}

// The extents of both axes over all runs.
function setExtents(view, runs) {
  const [times, steps] = [[0], []];
  const grow = (list, values) => {
    for (const value of values) if (value !== null) list.push(value);
  };
  for (const run of runs) {
    const { events, bars, end } = run.timeline;
    grow(times, [end, ...ends(events.t), ...ends(bars.to), ...ends(run.load.t)]);
    for (const metric of run.metrics) {
      for (const { own } of metric.lines) {
        grow(times, ends(own.t));
        grow(steps, ends(own.s));
      }
    }
  }
  view.setExtent("time", Math.min(...times), Math.max(...times));
  view.setExtent("step", Math.min(...steps, Infinity) === Infinity ? 0 : Math.min(...steps), Math.max(...steps, 1));
}

function ends(values) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null) continue;
    least = Math.min(least, value);
    most = Math.max(most, value);
  }
  return least <= most ? [least, most] : [];
}
