// One chart of uPlot: lines with bands over an axis that it shares with all others.

const UNITS_0_TO_100 = new Set(["%"]);

class Chart {
  constructor(view, title, unit) {
    [this.view, this.title, this.unit] = [view, title, unit];
    this.readout = h("span", { class: "readout" });
    this.summary = h("p", { class: "summary" });
    this.plot = h("div", {
      class: "plot", tabindex: 0, role: "group",
      "aria-label": `${title}: arrow keys pan and zoom, with Shift they read values, Escape shows all`,
      onkeydown: (event) => this.onKey(event),
    });
    this.element = h("figure", { class: "chart" },
      h("figcaption", {}, h("strong", {}, title), " ", this.readout), this.summary, this.plot);
    this.lines = [];
    this.axis = "time";
    this.uplot = null;
    this.signature = "";
    this.visible = false;
    this.stale = true;
    SEEN.observe(this.element);
    this.element.chart = this;
  }

  // `lines`: run, label, x, v, lo, hi, bx (the band's own x, if it has one), gap.
  set(axis, lines, summary) {
    [this.axis, this.lines] = [axis, lines];
    this.summary.textContent = summary;
    this.stale = true;
    if (this.visible) this.draw();
  }

  draw() {
    if (!this.plot.clientWidth) return;
    const signature = JSON.stringify([
      this.axis, this.view.themed, gutter(),
      this.lines.map((line) => [line.label, line.run, line.lo.length > 0, Boolean(line.bx)]),
    ]);
    if (this.stale || signature !== this.signature) {
      const tables = [];
      for (const line of this.lines) {
        if (!line.lo.length) tables.push([line.x, line.v]);
        else if (line.bx) tables.push([line.x, line.v], [line.bx, line.lo, line.hi]);
        else tables.push([line.x, line.v, line.lo, line.hi]);
      }
      const data = tables.length > 1 ? uPlot.join(tables) : tables[0] || [[], []];
      if (signature !== this.signature || !this.uplot) this.build(data);
      else this.uplot.setData(data, false);
      [this.signature, this.stale] = [signature, false];
    }
    const width = this.plot.clientWidth;
    if (width !== this.uplot.width) this.uplot.setSize({ width, height: HEIGHT });
    const [min, max] = this.view.range(this.axis);
    this.uplot.setScale("x", { min, max });
  }

  build(data) {
    if (this.uplot) this.uplot.destroy();
    const [series, bands] = [[{}], []];
    this.main = [];
    for (const line of this.lines) {
      const colour = COLOURS.runs[line.run % COLOURS.runs.length];
      this.main.push(series.length);
      series.push(this.lineSeries(line, colour));
      if (!line.lo.length) continue;
      const edge = { ...this.lineSeries(line, "transparent"), points: { show: false } };
      bands.push({ series: [series.length + 1, series.length], fill: `${colour}33` });
      series.push(edge, edge);
    }
    if (series.length === 1) series.push({});
    this.uplot = new uPlot(this.options(series, bands), data, this.plot);
  }

  lineSeries(line, colour) {
    const gaps = (plot, _series, _first, _last, found) => {
      const least = line.gap ? plot.valToPos(line.gap * 3, "x", true) - plot.valToPos(0, "x", true) : 0;
      return found.filter(([from, to]) => to - from > least);
    };
    return { stroke: colour, width: 1.5, dash: DASHES[line.run % DASHES.length], gaps, points: { size: 4 } };
  }

  options(series, bands) {
    const [view, axis] = [this.view, this.axis];
    const grid = { stroke: COLOURS.line, width: 1 };
    const axes = { stroke: COLOURS.muted, grid, ticks: grid, font: FONT };
    const spaced = (_plot, ticks) => (axis === "time"
      ? ticks.map((tick) => tickText(tick, ticks.length > 1 ? ticks[1] - ticks[0] : 1)) : amounts(ticks));
    const incrs = [...SPACINGS, 864000];
    const share = UNITS_0_TO_100.has(this.unit);
    return {
      width: this.plot.clientWidth, height: HEIGHT, series, bands,
      padding: [8, RIGHT, 0, 0],
      legend: { show: false },
      scales: { x: { time: false }, y: share ? { range: [0, 100] } : {} },
      axes: [
        { ...axes, size: 26, space: 84, values: spaced, ...(axis === "time" ? { incrs } : {}) },
        { ...axes, size: gutter(), values: (_plot, ticks) => this.tickTexts(ticks) },
      ],
      cursor: {
        sync: { key: axis },
        drag: { x: true, y: false, setScale: false },
        y: false,
        dataIdx: nearestKnown,
        bind: { dblclick: () => () => view.reset(axis) },
      },
      hooks: {
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          const [from, to] = [plot.select.left, plot.select.left + plot.select.width];
          const [min, max] = [plot.posToVal(from, "x"), plot.posToVal(to, "x")];
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          view.zoom(axis, min, max);
        }],
        setCursor: [(plot) => this.read(plot)],
      },
    };
  }

  // A long number has its unit below it.
  tickTexts(ticks) {
    const texts = amounts(ticks, this.shortUnit());
    const fitting = innerWidth < 600 ? 8 : 10;
    return texts.map((text) => (text.length > fitting ? text.replace(" ", "\n") : text));
  }

  shortUnit() {
    return ["B", "B/s", "%", "W", "°C"].includes(this.unit) ? this.unit : "";
  }

  read(plot) {
    const { left, idxs } = plot.cursor;
    if (left === null || left === undefined || left < 0 || !idxs) {
      this.readout.textContent = "";
      return;
    }
    const at = plot.posToVal(left, "x");
    const texts = this.lines.map((line, number) => {
      const value = plot.data[this.main[number]]?.[idxs[this.main[number]]];
      return value === null || value === undefined ? null : `${line.label} ${amount(value, this.unit)}`.trim();
    });
    const where = this.axis === "time" ? duration(at) : `step ${amount(Math.round(at))}`;
    this.readout.textContent = `${where}: ${texts.filter(Boolean).join(", ") || "no value"}`;
    if (this.plot.matches(":hover, :focus")) this.view.point(this.axis, at, this);
  }

  onKey(event) {
    if (event.shiftKey && (event.key === "ArrowLeft" || event.key === "ArrowRight") && this.uplot) {
      const before = this.uplot.cursor.left >= 0 ? this.uplot.cursor.left : 0;
      const left = before + (event.key === "ArrowRight" ? 8 : -8);
      this.readout.setAttribute("aria-live", "polite");
      this.uplot.setCursor({ left: Math.min(Math.max(left, 0), this.uplot.over.clientWidth), top: 20 });
      event.preventDefault();
      return;
    }
    this.view.key(event, this.axis);
  }

  // Show the cursor where another one points to.
  point(axis, value) {
    if (!this.uplot || !this.visible || axis !== this.axis) return;
    const left = value === null ? -10 : this.uplot.valToPos(value, "x");
    this.uplot.setCursor({ left, top: value === null ? -10 : 20 });
  }
}

const HEIGHT = 190;
const [NEAR, NEAR_PX] = [400, 12]; // points to look at for a value, and how far it may be

function nearestKnown(plot, series, hovered, at) {
  const [values, places] = [plot.data[series], plot.data[0]];
  const reach = (plot.posToVal(1, "x") - plot.posToVal(0, "x")) * NEAR_PX;
  const fits = (index) => values[index] !== null && values[index] !== undefined && Math.abs(places[index] - at) <= reach;
  for (let away = 0; away < NEAR; away += 1) {
    if (fits(hovered - away)) return hovered - away;
    if (fits(hovered + away)) return hovered + away;
  }
  return null;
}

// Charts are drawn when they come near the screen, and again when what they show has changed.
const SEEN = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const { chart } = entry.target;
    chart.visible = entry.isIntersecting;
    if (chart.visible) chart.draw();
  }
}, { rootMargin: "300px" });
