// The list of all runs of a cluster, those that are on first; each row leads to the page of its run.

const HEADS = ["Run", "State", "Progress", "Task", "By", "Age", "Nodes", "GPUs", "Attempt"];

function runRow(run, token) {
  const address = `run/${encodeURIComponent(run.id)}/?token=${encodeURIComponent(token)}`;
  const cells = [progress(run), run.task, run.owner, run.age, run.nodes, run.gpus || "–", run.attempt];
  return h("tr", {},
    h("th", { scope: "row" }, h("a", { href: address }, run.id)),
    h("td", {}, badge(run, false)),
    ...cells.map((cell) => h("td", { class: cell === run.task ? "task" : null }, cell ?? "–")));
}

class RunList {
  constructor(root, live) {
    this.live = live;
    this.main = h("main", { id: "main", tabindex: -1 });
    this.top = h("div", { class: "tools" });
    root.replaceChildren(h("header", { class: "top" }, h("nav", {}), this.top), this.main);
    this.theme = themeToggle({ changed() {}, listeners: new Set() });
  }

  follow(follower) {
    this.follower = follower;
    this.top.replaceChildren(follower.state, this.theme);
  }

  update(data) {
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    const runs = [...data.runs.filter((run) => run.is_on), ...data.runs.filter((run) => !run.is_on)];
    this.main.replaceChildren(
      h("h1", {}, `Runs on ${data.cluster}`),
      h("section", { class: "run-list" }, runs.length
        ? table(`Runs on ${data.cluster}`, HEADS, runs.map((run) => runRow(run, this.live.token)))
        : h("p", {}, "No runs on the hosts that answered."),
      data.omitted ? h("p", { class: "hint" }, data.omitted) : null),
      h("p", { class: "hint" }, `As of ${wallTime(data.made_at)}.`));
    if (focused) {
      const link = [...this.main.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused);
      if (link) link.focus();
    }
    if (this.follower) this.follower.ended = false; // there may be others
  }
}

const read = (id) => JSON.parse(document.getElementById(id).textContent);
const live = read("live");
const list = new RunList(document.getElementById("page"), live);
list.update(read("data"));
list.follow(new Live(live, (data) => list.update(data)));
document.documentElement.dataset.ready = "true";
