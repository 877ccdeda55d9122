// Elements and texts. All text is set as text, never as HTML.

function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function button(text, label, onclick) {
  return h("button", { type: "button", "aria-label": label, title: label, onclick }, text);
}

function table(caption, heads, rows) {
  const head = h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)));
  return h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, head),
      h("tbody", {}, rows)));
}

const PAD = (number) => String(number).padStart(2, "0");

function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const sign = seconds < 0 ? "-" : "";
  const whole = Math.floor(Math.abs(seconds));
  const [days, hours] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24];
  const [minutes, rest] = [Math.floor(whole / 60) % 60, whole % 60];
  if (days) return `${sign}${days} d ${PAD(hours)} h ${PAD(minutes)} m`;
  if (hours) return `${sign}${hours} h ${PAD(minutes)} m ${PAD(rest)} s`;
  if (minutes) return `${sign}${minutes} m ${PAD(rest)} s`;
  return `${sign}${Math.abs(seconds) < 10 ? Math.abs(seconds).toFixed(1) : whole} s`;
}

function tickText(seconds, spacing) {
  const text = duration(seconds);
  if (spacing < 1) return `${Number(seconds.toFixed(3))} s`;
  if (seconds === 0) return "0";
  if (spacing < 60 && Math.abs(seconds) >= 86400) return `${text} ${PAD(Math.floor(Math.abs(seconds)) % 60)} s`;
  return spacing >= 60 ? text.replace(/ 00 s$/, "").replace(/ h 00 m$/, " h") : text.replace(".0", "");
}

function wallTime(wall) {
  if (wall === null || wall === undefined) return "–";
  const at = new Date(wall * 1000);
  const day = `${at.getFullYear()}-${PAD(at.getMonth() + 1)}-${PAD(at.getDate())}`;
  return `${day} ${PAD(at.getHours())}:${PAD(at.getMinutes())}:${PAD(at.getSeconds())}`;
}

// `digits` are at least shown; of bytes, `most` chooses the prefix.
function amount(value, unit = "", digits = 0, most = value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (unit === "B" || unit === "B/s") {
    const power = Math.min(5, Math.max(0, Math.floor(Math.log10(Math.abs(most) || 1) / 3)));
    return `${Number((value / 1000 ** power).toPrecision(Math.max(digits, 4)))} ${["", "k", "M", "G", "T", "P"][power]}${unit}`;
  }
  const size = Math.abs(value);
  const text = size >= 1e4 && size < 1e15
    ? Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1)))))
      .toLocaleString("en-US", { maximumFractionDigits: 12 })
    : String(Number(value.toPrecision(Math.max(digits, 5))));
  return unit ? `${text} ${unit}` : text;
}

// The ticks of an axis, with as many digits as tell them apart.
function amounts(values, unit = "") {
  const most = Math.max(...values.map(Math.abs));
  let texts = [];
  for (let digits = 4; digits < 16; digits += 1) {
    texts = values.map((value) => amount(value, unit, digits, most));
    if (new Set(texts).size === values.length) break;
  }
  return texts;
}

// A part of the page that is made anew when its data changes; open folds stay.
class Block {
  constructor(element, render) {
    this.element = element;
    this.render = render;
    this.seen = null;
  }

  update(data) {
    const seen = JSON.stringify(data);
    if (seen === this.seen) return;
    this.seen = seen;
    const open = new Set();
    for (const each of this.element.querySelectorAll("details")) if (each.open) open.add(each.dataset.key);
    this.element.replaceChildren(...[this.render(data)].flat().filter(Boolean));
    for (const each of this.element.querySelectorAll("details")) {
      if (!open.has(each.dataset.key)) continue;
      each.open = true;
      each.dispatchEvent(new Event("toggle")); // what an open fold holds is made by that
    }
  }
}
