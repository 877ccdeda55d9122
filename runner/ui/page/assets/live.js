// Following a server: it says that something changed, and the page fetches what it draws.

const LEAST_PAUSE = 2000; // ms between two fetches
const RETRY_PAUSE = 5000; // ms before a closed connection, or data that did not come, is tried again

class Live {
  constructor(address, update) {
    [this.address, this.update] = [address, update];
    this.state = h("span", { class: "live", role: "status" }, "connecting");
    [this.fetching, this.wanted, this.lastFetch, this.stopped, this.note] = [false, false, 0, false, ""];
    this.connect();
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.changed(); });
  }

  url(name) {
    return `${name}?token=${encodeURIComponent(this.address.token)}`;
  }

  say(text) {
    if (this.state.textContent !== text) this.state.textContent = text;
  }

  connect() {
    this.source = new EventSource(this.url("events"));
    this.source.onopen = () => {
      this.lostAt = null;
      this.tell();
      this.changed();
    };
    this.source.onmessage = (event) => this.onVersion(parsed(event.data));
    this.source.onerror = () => {
      if (this.stopped) return;
      this.lose();
      if (this.source.readyState === EventSource.CLOSED) setTimeout(() => this.connectAgain(), RETRY_PAUSE);
    };
  }

  // The server refused: it is another one by now, or none.
  async connectAgain() {
    try {
      const answer = await fetch(this.url("data.json"), { cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) {
        this.stop();
        return;
      }
    } catch { /* it is not back */ }
    this.connect();
  }

  // The server's version of the data, with its word on how fresh that is.
  onVersion({ version, note, ended, stopped }) {
    if (stopped) {
      this.stop();
      return;
    }
    [this.note, this.ended] = [note || "", ended ?? this.ended];
    this.tell();
    if (version === undefined || version !== this.version) this.changed();
    this.version = version;
  }

  tell() {
    if (this.stopped) return;
    this.say([this.ended ? "the run has ended" : "live", this.note].filter(Boolean).join(": "));
  }

  stop() {
    this.stopped = true;
    this.source.close();
    this.say("the server was stopped, or started again at a new address: it printed that");
  }

  lose() {
    this.lostAt ??= Date.now() / 1000;
    this.say(`no answer of the server since ${wallTime(this.lostAt)}; trying again`);
  }

  changed() {
    if (this.stopped) return;
    this.wanted = true;
    if (this.fetching || document.hidden) return;
    this.fetching = true;
    setTimeout(() => this.fetch(), Math.max(0, this.lastFetch + LEAST_PAUSE - Date.now()));
  }

  async fetch() {
    this.wanted = false;
    try {
      const answer = await fetch(this.url("data.json"), { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const data = await answer.json();
      this.ended = data.runs.length > 0 && data.runs.every((run) => !run.is_on);
      this.update(data);
      this.tell();
    } catch { // the next event may be of the same version
      this.lose();
      setTimeout(() => this.changed(), RETRY_PAUSE);
    }
    [this.fetching, this.lastFetch] = [false, Date.now()];
    if (this.wanted) this.changed();
  }
}

function parsed(text) {
  try {
    return Object(JSON.parse(text));
  } catch {
    return {};
  }
}
