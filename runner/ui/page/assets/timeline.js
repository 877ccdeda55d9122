// The timeline of a run: a row per node, which opens to a row per rank, drawn on a canvas.
// Only the rows on the screen are drawn.

const [NODE_ROW, RANK_ROW, AXIS_ROW, MOST_HEIGHT] = [26, 15, 36, 460];
const STATE_WORDS = ["at work", "succeeded", "failed", "was stopped", "end not seen"];
const STATE_MARKS = ["", "✓", "✗", "■", "?"];
const STATE_COLOURS = ["on", "good", "bad", "warn", "unseen"];
const LEVEL_COLOURS = ["text", "warn", "warn", "bad"];

class Timeline {
  constructor(view, name) {
    [this.view, this.name] = [view, name];
    this.open = new Set();
    this.cursorRow = 0;
    this.pointed = null;
    this.canvas = h("canvas", {});
    this.spacer = h("div", {});
    this.said = h("p", { class: "hidden", "aria-live": "polite" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.area = h("div", {
      class: "timeline", tabindex: 0, role: "group",
      "aria-label": `Timeline of ${name}: up and down choose a row, Enter opens a node, ` +
        "left and right pan, plus and minus zoom, Escape shows all. The table of events has the same.",
      onkeydown: (event) => this.onKey(event),
      onscroll: () => this.draw(),
      onfocus: () => this.draw(),
      onblur: () => this.draw(),
    }, this.canvas, this.spacer);
    this.openAll = button("Open all nodes", "Show the ranks of all nodes", () => this.toggleAll());
    this.element = h("div", { class: "timeline-box" }, h("div", { class: "tools" }, this.openAll, legend()),
      this.area, this.tip, this.said);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.area);
  }

  set(timeline) {
    this.data = timeline;
    const { bars, events } = timeline;
    this.barsOf = timeline.nodes.map(() => new Map());
    bars.node.forEach((node, at) => {
      const rows = this.barsOf[node];
      if (!rows.has(bars.rank[at])) rows.set(bars.rank[at], []);
      rows.get(bars.rank[at]).push(at);
    });
    this.eventsOf = timeline.nodes.map(() => []);
    events.node.forEach((node, at) => this.eventsOf[node].push(at));
    this.layOut();
  }

  layOut() {
    this.rows = [];
    let top = 0;
    this.data.nodes.forEach((node, number) => {
      this.rows.push({ node: number, rank: null, top, height: NODE_ROW });
      top += NODE_ROW;
      if (!this.open.has(node.name)) return;
      for (const rank of node.ranks) {
        this.rows.push({ node: number, rank, top, height: RANK_ROW });
        top += RANK_ROW;
      }
    });
    this.height = Math.min(top + AXIS_ROW, MOST_HEIGHT);
    this.area.style.height = `${this.height + 2}px`;
    this.spacer.style.height = `${Math.max(0, top + AXIS_ROW - this.height)}px`;
    this.cursorRow = Math.min(this.cursorRow, this.rows.length - 1);
    const all = this.open.size > 0;
    this.openAll.textContent = all ? "Close all nodes" : "Open all nodes";
    this.draw();
  }

  toggle(node) {
    const { name } = this.data.nodes[node];
    if (!this.open.delete(name)) this.open.add(name);
    this.layOut();
  }

  toggleAll() {
    if (this.open.size) this.open.clear();
    else for (const node of this.data.nodes) this.open.add(node.name);
    this.layOut();
  }

  x(seconds) {
    const [min, max] = this.view.range("time");
    return this.left + ((seconds - min) / (max - min)) * (this.width - this.left - RIGHT);
  }

  seconds(x) {
    const [min, max] = this.view.range("time");
    return min + ((x - this.left) / (this.width - this.left - RIGHT)) * (max - min);
  }

  draw() {
    const ratio = devicePixelRatio || 1;
    [this.width, this.left] = [this.area.clientWidth, gutter()];
    if (!this.width || !this.data) return;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = FONT;
    pen.textBaseline = "middle";
    pen.fillStyle = COLOURS.surface;
    pen.fillRect(0, 0, this.width, this.height);
    const scrolled = this.area.scrollTop;
    this.drawn = this.rows.filter((row) =>
      row.top + row.height > scrolled && row.top < scrolled + this.height - AXIS_ROW);
    this.clipped(pen, AXIS_ROW, () => this.drawBands(pen));
    for (const row of this.drawn) this.drawRow(pen, row, row.top - scrolled + AXIS_ROW);
    this.drawAxis(pen);
    this.drawPointer(pen);
  }

  clipped(pen, top, paint) {
    pen.save();
    pen.beginPath();
    pen.rect(this.left, top, this.width - this.left - RIGHT, this.height);
    pen.clip();
    paint();
    pen.restore();
  }

  drawBands(pen) {
    this.data.attempts.forEach((attempt, at) => {
      if (at % 2 === 0) return;
      pen.fillStyle = COLOURS.band;
      pen.fillRect(this.x(attempt.from), AXIS_ROW, this.x(attempt.to) - this.x(attempt.from), this.height);
    });
  }

  drawRow(pen, row, top) {
    const node = this.data.nodes[row.node];
    const isNode = row.rank === null;
    const label = isNode ? `${this.open.has(node.name) ? "▾" : "▸"} ${node.name}` : `rank ${row.rank}`;
    pen.fillStyle = isNode ? COLOURS.text : COLOURS.muted;
    pen.fillText(fitted(pen, label, this.left - (isNode ? 8 : 20)), isNode ? 4 : 16, top + row.height / 2);
    const bars = this.barsOf[row.node].get(isNode ? -1 : row.rank) || [];
    this.clipped(pen, AXIS_ROW, () => {
      for (const at of bars) this.drawBar(pen, at, top + 4, row.height - 8 + (isNode ? 0 : 3));
      this.drawEvents(pen, row, top);
      if (isNode) {
        pen.fillStyle = COLOURS.line;
        pen.fillRect(this.left, top, this.width, 1);
      }
    });
    if (document.activeElement === this.area && this.rows[this.cursorRow] === row) {
      pen.strokeStyle = COLOURS.accent;
      pen.lineWidth = 2;
      pen.strokeRect(1, top + 1, this.width - 2, row.height - 2);
    }
  }

  drawBar(pen, at, top, height) {
    const { bars } = this.data;
    const [from, to] = [this.x(bars.from[at]), this.x(bars.to[at])];
    if (to < this.left || from > this.width) return;
    const start = Math.max(from, this.left - 10);
    const width = Math.max(2, Math.min(to, this.width + 10) - start);
    pen.fillStyle = COLOURS[STATE_COLOURS[bars.state[at]]];
    pen.globalAlpha = 0.55;
    pen.fillRect(start, top, width, height);
    pen.globalAlpha = 1;
    if (width > 18) {
      pen.fillStyle = COLOURS.text;
      pen.fillText(STATE_MARKS[bars.state[at]], to - 14, top + height / 2);
    }
  }

  drawEvents(pen, row, top) {
    const { events } = this.data;
    const columns = new Map();
    for (const at of this.eventsOf[row.node]) {
      if (row.rank !== null && events.rank[at] !== row.rank) continue;
      const x = Math.round(this.x(events.t[at]));
      if (x < this.left || x > this.width - RIGHT) continue;
      columns.set(x, Math.max(columns.get(x) || 0, events.level[at]));
    }
    for (const [x, level] of columns) {
      pen.fillStyle = COLOURS[LEVEL_COLOURS[level]];
      if (level) pen.fillRect(x - 1, top + 1, 3, row.height - 2);
      else pen.fillRect(x, top + row.height - 6, 1, 6);
    }
  }

  drawAxis(pen) {
    pen.fillStyle = COLOURS.surface;
    pen.fillRect(0, 0, this.width, AXIS_ROW);
    const [min, max] = this.view.range("time");
    const spacing = niceSpacing((max - min) / Math.max(2, (this.width - this.left) / 96));
    pen.fillStyle = COLOURS.muted;
    pen.textAlign = "center";
    for (let tick = Math.ceil(min / spacing) * spacing; tick <= max; tick += spacing) {
      pen.fillText(tickText(tick, spacing), Math.min(this.x(tick), this.width - 24), 27);
      pen.fillRect(this.x(tick), AXIS_ROW - 3, 1, 3);
    }
    pen.textAlign = "left";
    if (this.data.attempts.length < 2) return;
    this.clipped(pen, 0, () => {
      pen.fillStyle = COLOURS.text;
      let free = this.left;
      for (const attempt of this.data.attempts) {
        const text = `attempt ${attempt.number + 1}`;
        const x = Math.max(this.x(attempt.from), this.left) + 2;
        if (x < free || this.x(attempt.to) < this.left) continue;
        pen.fillText(text, x, 9);
        free = x + pen.measureText(text).width + 8;
      }
    });
  }

  drawPointer(pen) {
    if (this.selection) {
      const [a, b] = this.selection;
      pen.fillStyle = COLOURS.accent;
      pen.globalAlpha = 0.2;
      pen.fillRect(Math.min(a, b), AXIS_ROW, Math.abs(b - a), this.height);
      pen.globalAlpha = 1;
    }
    if (this.pointed === null) return;
    const x = this.x(this.pointed);
    if (x < this.left || x > this.width - RIGHT) return;
    pen.fillStyle = COLOURS.accent;
    pen.fillRect(x, AXIS_ROW - 6, 1, this.height);
  }

  listen() {
    const { canvas } = this;
    let down = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      down = event.offsetX;
      if (down >= this.left) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      this.selection = down !== null && Math.abs(event.offsetX - down) > 4 && down >= this.left
        ? [down, event.offsetX] : null;
      this.hover(event);
    });
    canvas.addEventListener("pointerup", (event) => {
      const row = this.rowAt(event.offsetY);
      if (this.selection) {
        const [a, b] = this.selection.map((x) => this.seconds(x));
        this.view.zoom("time", Math.min(a, b), Math.max(a, b));
      } else if (down !== null && down < this.left && row && row.rank === null) this.toggle(row.node);
      [down, this.selection] = [null, null];
      this.draw();
    });
    canvas.addEventListener("pointercancel", () => { [down, this.selection] = [null, null]; });
    canvas.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
      this.view.point("time", null, this);
    });
    canvas.addEventListener("dblclick", (event) => {
      if (event.offsetX >= this.left) this.view.reset("time");
    });
  }

  rowAt(y) {
    const at = y - AXIS_ROW + this.area.scrollTop;
    return y < AXIS_ROW ? null : this.rows.find((row) => at >= row.top && at < row.top + row.height);
  }

  hover(event) {
    const row = this.rowAt(event.offsetY);
    const inside = event.offsetX >= this.left;
    this.canvas.style.cursor = inside ? "crosshair" : "pointer";
    this.view.point("time", inside ? this.seconds(event.offsetX) : null, this);
    this.tip.hidden = !row;
    if (!row) return;
    this.tip.textContent = inside ? this.tellAt(row, event.offsetX) : this.tell(row);
    const box = this.element.getBoundingClientRect();
    const width = Math.min(360, box.width - 16);
    const left = Math.min(Math.max(0, event.clientX - box.left + 14), box.width - width - 4);
    this.tip.style.left = `${left}px`;
    this.tip.style.maxWidth = `${width}px`;
    this.tip.style.top = `${event.clientY - box.top + 18}px`;
  }

  tellAt(row, x) {
    const { events, bars } = this.data;
    const near = this.eventsOf[row.node].filter((at) =>
      (row.rank === null || events.rank[at] === row.rank) && Math.abs(this.x(events.t[at]) - x) < 5);
    if (near.length) {
      const lines = near.slice(0, 6).map((at) => eventLine(this.data, at));
      if (near.length > 6) lines.push(`and ${near.length - 6} more; zoom in, or see the table`);
      return lines.join("\n");
    }
    const at = (this.barsOf[row.node].get(row.rank === null ? -1 : row.rank) || [])
      .find((bar) => this.x(bars.from[bar]) <= x && this.x(bars.to[bar]) >= x);
    if (at === undefined) return `${this.tell(row)}\n${duration(this.seconds(x))}`;
    const span = `${duration(bars.from[at])} to ${duration(bars.to[at])}`;
    const word = STATE_WORDS[bars.state[at]];
    return `${rowName(this.data, row)}, attempt ${bars.attempt[at] + 1}\n${word}, ${span}`;
  }

  tell(row) {
    const node = this.data.nodes[row.node];
    const bars = this.barsOf[row.node].get(row.rank === null ? -1 : row.rank) || [];
    const ends = bars.map((at) => STATE_WORDS[this.data.bars.state[at]]).join(", then ");
    if (row.rank !== null) return `${rowName(this.data, row)}: ${ends || "nothing on record"}`;
    const count = this.eventsOf[row.node].length;
    return `${node.name}${node.host && node.host !== node.name ? ` (${node.host})` : ""}, ` +
      `${node.ranks.length} ranks, ${count} events${ends ? `: ${ends}` : ""}`;
  }

  onKey(event) {
    const moves = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10 };
    const row = this.rows[this.cursorRow];
    if (moves[event.key]) {
      const next = Math.min(Math.max(this.cursorRow + moves[event.key], 0), this.rows.length - 1);
      this.cursorRow = next;
      const { top, height } = this.rows[next];
      const seen = this.height - AXIS_ROW;
      if (top < this.area.scrollTop) this.area.scrollTop = top;
      else if (top + height > this.area.scrollTop + seen) this.area.scrollTop = top + height - seen;
      this.said.textContent = this.tell(this.rows[next]);
    } else if (event.key === "Enter" || event.key === " ") {
      this.toggle(row.node);
      this.said.textContent = `${this.data.nodes[row.node].name} is ${
        this.open.has(this.data.nodes[row.node].name) ? "open" : "closed"}`;
    } else {
      this.view.key(event, "time");
      return;
    }
    event.preventDefault();
    this.draw();
  }
}

function rowName(timeline, row) {
  return row.rank === null ? timeline.nodes[row.node].name : `rank ${row.rank} on ${timeline.nodes[row.node].name}`;
}

function eventLine(timeline, at) {
  const { events, nodes, kinds } = timeline;
  const rank = events.rank[at] === null ? "" : ` rank ${events.rank[at]}`;
  return `${duration(events.t[at])} ${nodes[events.node[at]].name}${rank}: ${kinds[events.kind[at]]}` +
    `${events.text[at] ? `, ${events.text[at]}` : ""}`;
}

function niceSpacing(least) {
  return SPACINGS.find((step) => step >= least) || Math.ceil(least / 864000) * 864000;
}

function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && pen.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return `${text.slice(0, length)}…`;
}

function legend() {
  const entries = STATE_WORDS.map((word, at) =>
    h("span", { class: "key" }, h("i", { class: `swatch ${STATE_COLOURS[at]}` }), `${STATE_MARKS[at]} ${word}`));
  return h("span", { class: "legend" }, entries);
}
