// The table of a run's events: filtered, in pages, for keyboards and screen readers, too.

const EVENTS_PER_PAGE = 50;
const LEVEL_WORDS = ["", "stopped", "warning", "failure"];

class EventTable {
  constructor(view, name) {
    this.view = view;
    this.page = 0;
    const again = () => { this.page = 0; this.show(); };
    this.text = h("input", { type: "search", placeholder: "filter", "aria-label": `Filter events of ${name}`, oninput: again });
    this.kind = h("select", { "aria-label": "Kind of event", onchange: again });
    this.node = h("select", { "aria-label": "Node", onchange: again });
    this.level = h("select", { "aria-label": "Severity", onchange: again },
      [[0, "all"], [2, "warnings and failures"], [3, "failures"]].map(([value, text]) => h("option", { value }, text)));
    this.inView = h("input", { type: "checkbox", onchange: again });
    this.count = h("span", { role: "status" });
    this.earlier = button("← Back", "Page before", () => { this.page -= 1; this.show(); });
    this.later = button("Next →", "Next page", () => { this.page += 1; this.show(); });
    this.block = new Block(h("div"), (rows) => this.table(rows));
    this.element = h("div", { class: "events" },
      h("div", { class: "tools filters" }, this.text, this.kind, this.node, this.level,
        h("label", {}, this.inView, " in the visible time")),
      this.block.element, h("div", { class: "tools" }, this.earlier, this.later, this.count));
    view.listeners.add(() => { if (this.inView.checked) again(); });
  }

  set(timeline) {
    this.data = timeline;
    const { events, kinds, nodes } = timeline;
    const used = [...new Set(events.kind)].sort((a, b) => (kinds[a] < kinds[b] ? -1 : 1));
    fill(this.kind, "all kinds", used.map((kind) => [kind, kinds[kind]]));
    fill(this.node, "all nodes", nodes.map((node, at) => [at, node.name]));
    this.words = events.t.map((_, at) =>
      `${nodes[events.node[at]].name} rank ${events.rank[at]} ${kinds[events.kind[at]]} ${events.text[at]}`.toLowerCase());
    this.show();
  }

  matching() {
    const { events } = this.data;
    const words = this.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const [kind, node, level] = [this.kind.value, this.node.value, Number(this.level.value)];
    const [min, max] = this.inView.checked ? this.view.range("time") : [-Infinity, Infinity];
    const found = [];
    for (let at = 0; at < events.t.length; at += 1) {
      if (events.level[at] < level || (kind && events.kind[at] !== Number(kind))) continue;
      if ((node && events.node[at] !== Number(node)) || events.t[at] < min || events.t[at] > max) continue;
      if (words.every((word) => this.words[at].includes(word))) found.push(at);
    }
    return found;
  }

  show() {
    const found = this.matching();
    const pages = Math.max(1, Math.ceil(found.length / EVENTS_PER_PAGE));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    const first = this.page * EVENTS_PER_PAGE;
    const shown = found.slice(first, first + EVENTS_PER_PAGE);
    this.earlier.disabled = this.page === 0;
    this.later.disabled = this.page >= pages - 1;
    const left = this.data.left_out ? `; ${this.data.left_out} more are in the record` : "";
    this.count.textContent = found.length
      ? `${first + 1}–${first + shown.length} of ${found.length.toLocaleString("en-US")} events${left}`
      : `no event matches${left}`;
    const { events, nodes, kinds } = this.data;
    this.block.update(shown.map((at) => [
      duration(events.t[at]), nodes[events.node[at]].name, events.attempt[at] + 1,
      events.rank[at] === null ? "" : events.rank[at], kinds[events.kind[at]], events.text[at], events.level[at],
    ]));
  }

  table(rows) {
    const lines = rows.map((row) => h("tr", { class: `level${row[6]}` }, row.slice(0, 6).map((cell, at) =>
      h("td", { class: at === 5 ? "wide" : null },
        at === 4 && row[6] ? `${cell} (${LEVEL_WORDS[row[6]]})` : String(cell)))));
    return table("Events", ["Time", "Node", "Attempt", "Rank", "Event", "Details"], lines);
  }
}

function fill(select, all, options) {
  const before = select.value;
  select.replaceChildren(h("option", { value: "" }, all), ...options.map(([value, text]) => h("option", { value }, text)));
  select.value = before;
  if (select.selectedIndex < 0) select.value = "";
}
