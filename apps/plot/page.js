// Draws the runs. All text comes from run folders: it is set as text, never as HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

// Okabe and Ito's colours without yellow, as in svg.cpp, and lighter ones on dark.
const kLight = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#767676"];
const kDark = ["#3d8fd6", "#e8743b", "#27b88b", "#d892bb", "#e6a820", "#93d5fb", "#9a9a9a"];
const kDashes = [[], [7, 3], [2, 3]];
const kMemoryColours = [0, 4, 2, 3, 5, 6];
const kStepColours = [4, 0, 5, 3, 1, 6];
const kTimeColours = [2, 4, 5, 0, 3, 1, 6, 6];
const kMarks = {
  checkpoint: "checkpoints", evaluation: "evaluations", start: "restarts", rollback: "rollbacks",
};
const kMostDots = 40;

const dark = matchMedia("screen and (prefers-color-scheme: dark)");
const groupOfRun = [];
data.groups.forEach((group, index) => group.runs.forEach((run) => { groupOfRun[run] = index; }));
const state = { axis: "step", smoothing: 0, log: false, hidden: new Set(), marks: new Set(), print: false };

const isDark = () => dark.matches && !state.print;
const colourAt = (index) => (isDark() ? kDark : kLight)[index % kLight.length];
const dashOf = (group) => kDashes[Math.floor(group / kLight.length) % kDashes.length];
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function add(parent, tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return parent.appendChild(element);
}

/// A number for people: 1,234,567; 0.00123; 1.2e-7.
function shown(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-4) return value.toExponential(2).replace(/\.?0+e/, "e");
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1e4 ? 15 : 5 });
}

function unitOf(units, largest) {
  return units.filter((unit) => largest >= 2 * unit.size).pop() || units[0];
}
const kSeconds = [{ name: "s", size: 1 }, { name: "min", size: 60 }, { name: "h", size: 3600 }, { name: "days", size: 86400 }];
const kBytes = ["B", "KiB", "MiB", "GiB", "TiB"].map((name, power) => ({ name, size: 1024 ** power }));
const kCounts = ["", " (thousands)", " (millions)", " (billions)", " (trillions)"]
  .map((name, power) => ({ name, size: 1000 ** power }));
const timeUnit = unitOf(kSeconds, Math.max(0, ...data.charts.flatMap((chart) => chart.series.map((s) => s.seconds[s.seconds.length - 1]))));

/// All charts have the same x axis, from 0 unless that would leave half of it empty. It can be tokens if all runs have
/// recorded them.
const allSeries = data.charts.flatMap((chart) => chart.series);
const hasTokens = allSeries.length > 0 && allSeries.every((series) => series.tokens);
const kRanges = Object.fromEntries(["step", "samples", ...(hasTokens ? ["tokens"] : []), "seconds"].map((axis) => {
  const all = allSeries.map((series) => series[axis]);
  const from = Math.min(...all.map((values) => values[0])), to = Math.max(...all.map((values) => values[values.length - 1]));
  return [axis, from < to / 2 ? [0, to] : [from, to]];
}));
const tokensUnit = unitOf(kCounts, hasTokens ? kRanges.tokens[1] : 0);
const scaleOfAxis = () => ({ seconds: timeUnit.size, tokens: tokensUnit.size })[state.axis] || 1;
const axisTitle = () => ({
  step: "step", samples: "samples", tokens: "tokens" + tokensUnit.name, seconds: `wall time (${timeUnit.name})`,
})[state.axis];

// --- what the charts share ------------------------------------------------------------------------------------------

/// Of each visible line the point that is nearest to the pointer's place on the x axis.
Chart.Interaction.modes.each = (chart, event) => chart.getSortedVisibleDatasetMetas()
  .filter((meta) => !chart.data.datasets[meta.index].isBehind && meta.data.length > 0)
  .map((meta) => {
    let index = 0;
    meta.data.forEach((point, i) => {
      if (Math.abs(point.x - event.x) < Math.abs(meta.data[index].x - event.x)) index = i;
    });
    return { element: meta.data[index], datasetIndex: meta.index, index };
  });

const visibleMarks = () => data.marks.filter((mark) => state.marks.has(mark.kind) && !state.hidden.has(mark.group));
const pixelOf = (chart, mark) => chart.scales.x.getPixelForValue(mark[state.axis] / scaleOfAxis());

/// Checkpoints are below the x axis, evaluations at the upper edge; a start points forward, a rollback back.
function drawMark(context, mark, x, { top, bottom }) {
  context.beginPath();
  if (mark.kind === "checkpoint") {
    context.moveTo(x - 4, bottom + 4);
    context.lineTo(x + 4, bottom + 4);
    context.lineTo(x, bottom - 3);
    context.fill();
  } else if (mark.kind === "evaluation") {
    context.arc(x, top, 2.5, 0, 2 * Math.PI);
    context.fill();
  } else {
    context.setLineDash(mark.kind === "start" ? [4, 3] : [1, 2]);
    context.moveTo(x, top);
    context.lineTo(x, bottom);
    context.stroke();
    context.beginPath();
    const to = mark.kind === "start" ? 5 : -5;
    context.moveTo(x, top);
    context.lineTo(x + to, top + 4);
    context.lineTo(x, top + 8);
    context.fill();
  }
}

const marksPlugin = {
  id: "marks",
  afterDatasetsDraw(chart) {
    const { ctx: context, chartArea: area } = chart;
    context.save();
    const [active] = chart.getActiveElements();
    if (active) {
      context.strokeStyle = themed("--faint");
      context.lineWidth = 0.5;
      context.beginPath();
      context.moveTo(active.element.x, area.top);
      context.lineTo(active.element.x, area.bottom);
      context.stroke();
    }
    context.globalAlpha = 0.8;
    context.lineWidth = 1;
    for (const mark of visibleMarks()) {
      const x = pixelOf(chart, mark);
      if (!(x >= area.left - 1 && x <= area.right + 1)) continue;
      context.fillStyle = context.strokeStyle = colourAt(mark.group);
      context.setLineDash([]);
      drawMark(context, mark, x, area);
    }
    context.restore();
  },
};

const kCommon = { animation: false, maintainAspectRatio: false };
const pixelRatio = () => (state.print ? 3 : window.devicePixelRatio);

function axis(title, more = {}) {
  const colour = themed("--faint");
  return {
    title: { display: true, text: title, color: colour, font: { size: 12 } },
    grid: { color: themed("--grid"), borderColor: themed("--line"), tickLength: 4 },
    ...more,
    ticks: { color: colour, maxRotation: 0, autoSkipPadding: 16, maxTicksLimit: 8, callback: shown, ...more.ticks },
  };
}

/// Of the ticks of a logarithmic axis those at 1, 2 and 5, and over many decades those at 1; the others have no line.
function logTick(value) {
  const few = this.max > 1000 * this.min, first = Math.round(value / 10 ** Math.floor(Math.log10(value) + 1e-9));
  return first === 1 || (!few && (first === 2 || first === 5)) ? shown(value) : null;
}

function tooltip(callbacks) {
  return {
    backgroundColor: themed("--chosen"), titleColor: themed("--on-chosen"), bodyColor: themed("--on-chosen"),
    footerColor: themed("--on-chosen"), footerFont: { weight: "normal", style: "italic" }, usePointStyle: true,
    boxWidth: 8, boxHeight: 8, boxPadding: 4, callbacks,
  };
}

// --- charts of series -----------------------------------------------------------------------------------------------

/// The learning rate has no noise, and the average of a few points shows its lag more than a trend.
const hasNoise = (spec) => spec.id !== "lr" && spec.series.some((series) => series.value.length > kMostDots);
const isSmoothed = (spec) => state.smoothing > 0 && hasNoise(spec);

/// TensorBoard's smoothing: an exponential moving average with bias correction. The correction is part of each update,
/// so that a constant stays exactly the same, and its y axis does not show rounding errors.
function smoothed(values) {
  let mean = 0, rest = 1;
  return values.map((value) => {
    rest *= state.smoothing;
    mean += (value - mean) * ((1 - state.smoothing) / (1 - rest));
    return mean;
  });
}

/// The line and the band of a series. For a thinned one the means of its parts are smoothed: its points are the lowest
/// and the highest values, whose average is not the mean.
function valuesOf(spec, series) {
  if (!isSmoothed(spec)) return series;
  const { value, least, most } = series.means || series;
  return { value: smoothed(value), ...(least && { least: smoothed(least), most: smoothed(most) }) };
}

function datasetsOf(spec) {
  return spec.series.flatMap((series) => {
    const colour = colourAt(series.group), scale = scaleOfAxis(), hidden = state.hidden.has(series.group);
    const values = valuesOf(spec, series), dots = series.value.length <= kMostDots ? 2.5 : 0;
    const line = (all) => all.map((y, i) => ({ x: series[state.axis][i] / scale, y }));
    const common = { hidden, borderColor: colour, pointRadius: 0, fill: false, clip: 4 };
    const edge = { ...common, borderWidth: 0, isBehind: true };
    return [
      ...(values.least ? [
        { ...edge, data: line(values.least) },
        { ...edge, data: line(values.most), fill: "-1", backgroundColor: colour + "33" },
      ] : []),
      {
        ...common, data: line(values.value), series, values, borderWidth: 1.6, borderDash: dashOf(series.group),
        borderJoinStyle: "round", backgroundColor: colour, pointRadius: values === series ? dots : 0,
        pointHoverRadius: 4, label: data.groups[series.group].name,
      },
      ...(values === series ? [] : [{
        ...common, data: line(series.value), borderColor: colour + "55", backgroundColor: colour + "55",
        borderWidth: 1.2,  // of one pixel, Chromium draws each segment on its own, and their colours add up
        pointRadius: dots, isBehind: true, order: 1,
      }]),
    ];
  });
}

function lineOptions(spec) {
  const [from, to] = kRanges[state.axis];
  return {
    ...kCommon, devicePixelRatio: pixelRatio(), parsing: false, interaction: { mode: "each", intersect: false },
    scales: {
      x: axis(axisTitle(), { type: "linear", min: from / scaleOfAxis(), max: to / scaleOfAxis(), ticks: { includeBounds: false } }),
      y: axis(spec.unit, state.log && spec.is_loss ? { type: "logarithmic", ticks: { autoSkip: false, callback: logTick } }
        : { type: "linear", ticks: { maxTicksLimit: 7 } }),
    },
    plugins: {
      legend: { display: false },
      tooltip: tooltip({
        title: (items) => (items.length ? `${axisTitle()} ${shown(items[0].parsed.x)}` : ""),
        label: ({ dataset, dataIndex: i, parsed }) => {
          const { series, values: { least, most } } = dataset;
          return ` ${dataset.label}: ${shown(parsed.y)}` + (least ? ` (${shown(least[i])} to ${shown(most[i])})` : "") +
            (isSmoothed(spec) ? `, not smoothed ${shown(series.value[i])}` : "");
        },
        footer: (items) => {
          if (!items.length) return [];
          const { chart, element } = items[0];
          const near = visibleMarks().filter((mark) => Math.abs(pixelOf(chart, mark) - element.x) < 5);
          const texts = near.map((mark) => (data.groups.length > 1 ? `${data.groups[mark.group].name}: ` : "") + mark.text);
          return [...new Set(texts)].slice(0, 4).map((text) => (text.length > 90 ? text.slice(0, 90) + "…" : text));
        },
      }),
    },
  };
}

// --- charts of parts ------------------------------------------------------------------------------------------------

/// `scaled`: what the axis has of a value of a bar.
function barData(parts, bars, colours, scaled) {
  const shownBars = bars.filter((bar) => !state.hidden.has(groupOfRun[bar.run]));
  return {
    labels: shownBars.map((bar) => data.runs[bar.run].name),
    datasets: parts.map((part, index) => ({
      label: part, data: shownBars.map((bar) => scaled(bar, index)), bars: shownBars, maxBarThickness: 26,
      backgroundColor: colourAt(colours[index]) + (part === "idle" ? "80" : ""),
    })).filter((_, index) => bars.some((bar) => bar.values[index] > 0)),
  };
}

function barOptions(title, more, label) {
  const name = (text) => (text.length > 24 ? "…" + text.slice(-23) : text);
  return {
    ...kCommon, devicePixelRatio: pixelRatio(), indexAxis: "y", interaction: { mode: "nearest", axis: "y", intersect: false },
    scales: {
      x: axis(title, { stacked: true, ...more }),
      y: axis("", {
        stacked: true, title: { display: false }, grid: { display: false },
        ticks: { autoSkip: false, color: themed("--text"), callback(value) { return name(this.getLabelForValue(value)); } },
      }),
    },
    plugins: {
      legend: { position: "bottom", labels: { boxWidth: 10, boxHeight: 10, color: themed("--faint"), font: { size: 12 } } },
      tooltip: tooltip({ label }),
    },
  };
}

const total = (bar) => bar.values.reduce((sum, value) => sum + value, 0);
const bytesUnit = unitOf(kBytes, Math.max(0, ...data.memory.bars.map(total)));
const barCharts = [
  {
    title: "Peak memory of tensors, by category", bars: data.memory.bars,
    data: () => barData(data.memory.parts, data.memory.bars, kMemoryColours, (bar, i) => bar.values[i] / bytesUnit.size),
    options: () => barOptions(bytesUnit.name, {}, ({ dataset, dataIndex, parsed }) =>
      ` ${dataset.label}: ${shown(parsed.x)} ${bytesUnit.name} (rank ${dataset.bars[dataIndex].rank})`),
  },
  {
    title: "A step of rank 0: what takes its time", bars: data.step.bars,
    data: () => barData(data.step.parts, data.step.bars, kStepColours, (bar, i) => 1000 * bar.values[i]),
    options: () => barOptions("ms", {}, ({ dataset, dataIndex, parsed }) =>
      ` ${dataset.label}: ${shown(parsed.x)} ms (${(100 * parsed.x / (1000 * total(dataset.bars[dataIndex]))).toFixed(1)} %)`),
  },
  {
    title: "Goodput: parts of the wall time", bars: data.times.bars,
    data: () => barData(data.times.parts, data.times.bars, kTimeColours, (bar, i) => 100 * bar.values[i] / total(bar)),
    options: () => barOptions("% of wall time", { max: 100 }, ({ dataset, dataIndex, parsed }) =>
      ` ${dataset.label}: ${parsed.x.toFixed(1)} % (${shown(parsed.x / 100 * total(dataset.bars[dataIndex]))} s)`),
  },
].filter((spec) => spec.bars.length > 0);

// --- the page -------------------------------------------------------------------------------------------------------

const charts = [];
function addChart(type, spec, makeData, makeOptions, plugins) {
  const section = add(document.getElementById(type === "bar" ? "bars" : "charts"), "section");
  add(section, "h2", spec.title);
  const frame = add(section, "div", undefined, "canvas");
  if (spec.bars) frame.style.height = `${8 + 2 * spec.bars.length}rem`;
  const canvas = add(frame, "canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", spec.title);
  const chart = new Chart(canvas, { type, data: makeData(), options: makeOptions(), plugins });
  charts.push({ chart, makeData, makeOptions });
}

const swatches = [];
function addSwatch(parent, group) {
  swatches.push({ element: add(parent, "span", undefined, "swatch"), group });
}

function refresh() {
  updateFooter();
  for (const { element, group } of swatches) {
    element.style.borderTopColor = colourAt(group);
    element.style.borderTopStyle = ["solid", "dashed", "dotted"][kDashes.indexOf(dashOf(group))];
  }
  for (const { chart, makeData, makeOptions } of charts) {
    chart.data = makeData();
    chart.options = makeOptions();
    chart.update("none");
  }
}

function addLegend() {
  const buttons = data.groups.map((group, index) => {
    const button = add(document.getElementById("legend"), "button");
    button.type = "button";
    button.title = `${group.runs.map((run) => data.runs[run].dir).join("\n")}\nDouble-click: only this one`;
    addSwatch(button, index);
    add(button, "span", group.name);
    return button;
  });
  const update = () => {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(!state.hidden.has(index))));
    refresh();
  };
  buttons.forEach((button, index) => {
    button.addEventListener("click", () => {
      if (!state.hidden.delete(index)) state.hidden.add(index);
      update();
    });
    button.addEventListener("dblclick", () => {
      const others = buttons.map((_, other) => other).filter((other) => other !== index);
      const isAlone = others.every((other) => state.hidden.has(other));
      state.hidden = new Set(isAlone ? [] : others);
      update();
    });
  });
  update();
}

function addSwitches() {
  if (!hasTokens) document.querySelector('[data-axis="tokens"]').remove();
  const axes = document.querySelectorAll("[data-axis]");
  axes.forEach((button) => button.addEventListener("click", () => {
    state.axis = button.dataset.axis;
    axes.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    refresh();
  }));
  const smoothing = document.getElementById("smoothing");
  smoothing.disabled = !data.charts.some(hasNoise);
  smoothing.addEventListener("change", () => { state.smoothing = Number(smoothing.value); refresh(); });
  const log = document.getElementById("log");
  log.addEventListener("change", () => { state.log = log.checked; refresh(); });
  for (const [kind, name] of Object.entries(kMarks)) {
    if (!data.marks.some((mark) => mark.kind === kind)) continue;
    const label = add(document.getElementById("switches"), "label");
    const box = add(label, "input");
    box.type = "checkbox";
    // Of several runs, the frequent marks would hide each other.
    box.checked = data.groups.length === 1 || kind === "start" || kind === "rollback";
    if (box.checked) state.marks.add(kind);
    label.append(` ${name}`);
    box.addEventListener("change", () => {
      if (!state.marks.delete(kind)) state.marks.add(kind);
      refresh();
    });
  }
}

function addTable(title, { columns, rows }) {
  if (columns.length === 0) return;
  const section = add(document.getElementById("tables"), "section");
  add(section, "h2", title);
  const table = add(add(section, "div", undefined, "scroll"), "table");
  const head = add(add(table, "thead"), "tr");
  for (const column of ["run", ...columns]) add(head, "th", column).scope = "col";
  const body = add(table, "tbody");
  rows.forEach((cells, run) => {
    const row = add(body, "tr"), name = add(row, "th");
    name.scope = "row";
    name.title = data.runs[run].dir;
    addSwatch(name, groupOfRun[run]);
    add(name, "span", data.runs[run].name);
    for (const cell of cells) add(row, "td", cell).title = cell;
  });
}

function addTexts() {
  const count = data.runs.length, [first] = data.runs;
  document.title = count === 1 ? `${first.name} · Trireme` : `${count} runs · Trireme`;
  document.getElementById("title").textContent = count === 1 ? first.name : `${count} runs`;
  const written = new Date(data.written * 1000).toLocaleString("en-GB", { dateStyle: "long", timeStyle: "short" });
  document.getElementById("about").textContent = `State of ${written}`;
}

function updateFooter() {
  const notes = [`Written by trireme plot ${data.version}; charts by Chart.js 3 (MIT licence).`];
  if (data.most_points) {
    notes.push(`Series of more than ${shown(data.most_points)} points are thinned: each of equally long parts keeps its ` +
      "lowest and its highest value, so that spikes stay.");
  }
  if (data.groups.some((group) => group.runs.length > 1)) {
    notes.push("Runs that differ in their seed only are one line, the mean at the steps that all of them have, in a band " +
      "from the lowest to the highest value.");
  }
  if (state.smoothing) {
    notes.push(`Lines and bands are exponential moving averages with weight ${state.smoothing}, except the learning ` +
      `rate and charts of at most ${kMostDots} points; faint lines are not smoothed.`);
  }
  document.getElementById("footer").textContent = notes.join(" ");
}

Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
addTexts();
addSwitches();
addTable("Results", data.results);
addTable("Settings that differ", data.settings);
for (const spec of data.charts) {
  addChart("line", spec, () => ({ datasets: datasetsOf(spec) }), () => lineOptions(spec), [marksPlugin]);
}
for (const spec of barCharts) addChart("bar", spec, spec.data, spec.options, []);
addLegend();
dark.addEventListener("change", refresh);
const kPrinted = [320, 210];  // pixels of a chart: two beside each other on a page
function setPrint(print) {
  state.print = print;
  refresh();
  for (const { chart } of charts) {
    if (print) chart.resize(...kPrinted); else chart.resize();
  }
}
addEventListener("beforeprint", () => setPrint(true));
addEventListener("afterprint", () => setPrint(false));
document.body.dataset.ready = String(charts.length);
