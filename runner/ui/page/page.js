// Draws the charts of a page; everything else is in its HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const HEIGHT = 220;
const COLOURS = 8;
const SPANS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 864000];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

function short(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 1e4) return String(+value.toPrecision(4));
  const power = Math.min(4, Math.floor(Math.log10(Math.abs(value)) / 3));
  return +(value / 1000 ** power).toPrecision(3) + ["", " k", " M", " G", " T"][power];
}

function clock(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  const digits = (number) => String(number % 60).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${digits(Math.floor(whole / 60))}:${digits(whole)}`;
}

function draw(box, chart, group) {
  const isTime = chart.x === "time";
  const asText = isTime ? clock : short;
  const colour = (number) => `--run${chart.lines[number - 1].colour % COLOURS}`;
  const axis = {
    stroke: () => style("--muted"),
    grid: { stroke: () => style("--line"), width: 1 },
    ticks: { show: false },
  };
  const options = {
    title: chart.title + (chart.unit ? ` (${chart.unit})` : ""),
    width: box.clientWidth,
    height: HEIGHT,
    scales: { x: { time: false } },
    cursor: { sync: { key: group } },
    legend: { markers: { stroke: (plot, number) => `var(${colour(number)})` } },
    series: [
      { label: chart.x, value: (plot, value) => asText(value) },
      ...chart.lines.map((line) => ({
        label: line.label,
        stroke: (plot, number) => style(colour(number)),
        width: 1.5,
        spanGaps: true,
        points: { show: line.table[0].length < 3 },
        value: (plot, value) => short(value),
      })),
    ],
    axes: [
      { ...axis, ...(isTime && { incrs: SPANS }), values: (plot, values) => values.map(asText) },
      { ...axis, size: 60, values: (plot, values) => values.map(short) },
    ],
  };
  const plot = new uPlot(options, uPlot.join(chart.lines.map((line) => line.table)), box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw());
  new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: HEIGHT })).observe(box);
}

for (const place of document.querySelectorAll("[data-charts]")) {
  const charts = data[place.dataset.charts];
  place.append(...charts.map(() => document.createElement("div"))); // all first: they share the width
  charts.forEach((chart, number) => draw(place.children[number], chart, place.dataset.charts));
}
document.documentElement.dataset.ready = "";
