// The sections of the page that are text: facts, failure, differences, logs, configuration, commands.

const STATE_OF = { succeeded: "good", failed: "bad", lost: "bad", stuck: "bad", stopped: "warn" };
const STATE_SIGNS = { good: "✓", bad: "✗", warn: "■", on: "…" };

function badge(run) {
  const look = STATE_OF[run.state] || "on";
  return h("span", { class: `badge ${look}` }, `${STATE_SIGNS[look]} ${run.state}`);
}

function runHeader(run) {
  const hint = run.is_on
    ? h("p", { class: "notice" }, "No end of this run is on record here, so it may be on: this page shows it " +
      "as it was known when the page was made. The commands below follow it.") : null;
  return [
    h("h2", {}, run.id, " ", badge(run)), hint, progress(run),
    ...run.problems.map((text) => h("p", { class: "notice" }, text)),
  ];
}

function facts(run) {
  const times = run.launched_at === null ? [] : [["launched", wallTime(run.launched_at)]];
  if (run.ended_at !== null) times.push(["ended", wallTime(run.ended_at)]);
  return h("dl", { class: "facts" }, [...times, ...run.facts].map(([name, text]) =>
    h("div", { class: text.length > 30 ? "long" : null }, h("dt", {}, name), h("dd", {}, text))));
}

function progress(run) {
  const { progress: at } = run;
  if (!at) return null;
  const texts = [at.steps ? `step ${at.step} of ${at.steps}` : `step ${at.step}`];
  if (at.rate !== null) texts.push(`${amount(at.rate)} ${at.unit}`);
  if (run.is_on && at.left_s !== null) texts.push(`${duration(at.left_s)} left`);
  const bar = at.steps ? h("progress", { max: at.steps, value: Math.min(at.step, at.steps), "aria-label": "Progress" }) : null;
  return h("p", { class: "progress" }, bar, " ", texts.join(", "));
}

function failure(run) {
  const found = run.failure;
  if (!found) return null;
  return h("section", { class: "failure", "aria-label": "First failure" },
    h("h3", {}, `First failure: ${found.title}`),
    found.meaning ? h("p", {}, h("strong", {}, "Why: "), found.meaning) : null,
    found.remedy ? h("p", {}, h("strong", {}, "Cure: "), found.remedy) : null,
    found.text ? pre(found.text, "The last words of the log") : null,
    found.others ? h("p", { class: "muted" }, found.others) : null);
}

function pre(text, label) {
  return h("pre", { tabindex: 0, role: "region", "aria-label": label }, text);
}

function commands(run) {
  return [
    h("h3", {}, "Next commands"),
    h("ul", { class: "commands" }, run.commands.map(([purpose, command]) => {
      const copy = button("Copy", `Copy: ${command}`, () => copyText(copy, command));
      return h("li", {}, h("span", {}, purpose), h("code", { tabindex: 0 }, command), copy);
    })),
  ];
}

async function copyText(source, text) {
  const code = source.previousElementSibling;
  getSelection().selectAllChildren(code);
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    done = document.execCommand("copy");
  }
  source.textContent = done ? "Copied" : "Selected";
}

function differences({ rows, runs }) {
  if (!rows.length) return [];
  const lines = rows.map((row) => h("tr", { class: row.differs ? "differs" : null },
    h("th", { scope: "row" }, row.name), h("td", { class: "muted" }, row.kind),
    row.values.map((value) => h("td", {}, value))));
  return [
    h("h2", {}, "Differences"),
    h("p", { class: "legend" }, runs.map((id, at) => h("span", { class: "key" }, h("i", { class: `swatch line${at % 8}` }), id))),
    table("Differences between the runs", ["", "", ...runs], lines),
  ];
}

function logs(run) {
  if (!run.logs.length) return [h("p", { class: "muted" }, "No logs are on record here; `pull` brings them.")];
  return run.logs.map((log) => {
    const attempt = log.attempt ? `, attempt ${log.attempt + 1}` : "";
    const name = `${log.node}: ${log.source.replace("_", " ")} ${log.stream}${attempt}`;
    const key = `${run.id} ${name}`;
    const body = h("div");
    const details = h("details", {
      "data-key": key,
      ontoggle: () => { if (details.open && !body.firstChild) body.append(pre(log.text, `The end of ${name}`)); },
    }, h("summary", {}, name, " ", h("span", { class: "muted" }, `the end of ${log.size}`)), body);
    return details;
  });
}

// A list of which a filter shows the entries that have all of its words.
class Filtered {
  constructor(label, render) {
    this.render = render;
    this.words = h("input", { type: "search", placeholder: "filter", "aria-label": label, oninput: () => this.show() });
    this.block = new Block(h("div"), (data) => render(data));
    this.element = h("div", {}, h("div", { class: "tools" }, this.words), this.block.element);
  }

  set(data, select) {
    [this.data, this.select] = [data, select];
    this.show();
  }

  show() {
    this.block.update(this.select(this.data, this.words.value.toLowerCase().split(/\s+/).filter(Boolean)));
  }
}

const hasAll = (text, words) => words.every((word) => text.toLowerCase().includes(word));

function selectConfig(run, words) {
  return run.config.filter((row) => hasAll(row.join(" "), words));
}

function selectLogs(run, words) {
  return { id: run.id, logs: run.logs.filter((log) => hasAll(`${log.node} ${log.source} ${log.stream}`, words)) };
}

function config(rows) {
  if (!rows.length) return [h("p", { class: "muted" }, "Nothing to show.")];
  const lines = rows.map(([key, value]) => h("tr", {},
    h("th", { scope: "row" }, key), h("td", { class: "value" }, value)));
  return [table("Configuration", ["Key", "Value"], lines)];
}
