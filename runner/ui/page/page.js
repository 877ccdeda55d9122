// Draws the charts of a page; everything else is in its HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLOURS = 8;
const MINUTE = 60;
const HOUR = 3600;
const SPANS = [
  ...[0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30],
  ...[1, 2, 5, 10, 20, 30].map((number) => number * MINUTE),
  ...[1, 2, 6, 12, 24, 48, 240].map((number) => number * HOUR),
];

function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e4) {
    const power = Math.min(4, Math.floor(Math.log10(size) / 3));
    return +(value / 1000 ** power).toPrecision(3) + ["", " k", " M", " G", " T"][power];
  }
  return String(+value.toPrecision(4));
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes === 0) return +seconds.toPrecision(3) + " s";
  const parts = minutes < 60 ? [minutes, " m ", whole % 60, " s"] : [Math.floor(minutes / 60), " h ", minutes % 60, " m"];
  return parts[2] === 0 ? parts[0] + parts[1].trimEnd() : parts.join("");
}

function draw(box, chart, sync) {
  const asText = chart.x === "time" ? span : short;
  const line = (label, number) => ({
    label,
    stroke: style("--run" + (chart.colours[number] % COLOURS)),
    width: 1.5,
    spanGaps: true,
    points: { show: chart.tables[0][0].length < 3 },
    value: (plot, value) => short(value),
  });
  const axis = {
    stroke: style("--muted"),
    grid: { stroke: style("--line"), width: 1 },
    ticks: { show: false },
  };
  const options = {
    title: chart.title + (chart.unit ? " (" + chart.unit + ")" : ""),
    width: box.clientWidth,
    height: 220,
    scales: { x: { time: false } },
    cursor: { sync: { key: sync + chart.x } },
    series: [
      { label: chart.x, value: (plot, value) => asText(value) },
      ...chart.labels.map(line),
    ],
    axes: [
      {
        ...axis,
        ...(chart.x === "time" ? { incrs: SPANS } : {}),
        values: (plot, values) => values.map(asText),
      },
      { ...axis, size: 60, values: (plot, values) => values.map(short) },
    ],
  };
  const columns = chart.tables.length > 1 ? uPlot.join(chart.tables) : chart.tables[0];
  return new uPlot(options, columns, box);
}

const drawn = [];

function drawAll() {
  for (const { box, plot } of drawn.splice(0)) {
    plot.destroy();
    box.remove();
  }
  for (const place of document.querySelectorAll("[data-charts]")) {
    const name = place.dataset.charts;
    const boxes = data[name].map(() => document.createElement("div"));
    place.append(...boxes); // all of them first: each has its width from their number
    data[name].forEach((chart, number) => {
      const box = boxes[number];
      drawn.push({ box, plot: draw(box, chart, name) });
    });
  }
}

let waiting = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => {
    for (const { box, plot } of drawn) plot.setSize({ width: box.clientWidth, height: 220 });
  });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
document.documentElement.dataset.ready = "";
