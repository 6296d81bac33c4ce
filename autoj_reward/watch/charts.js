const WIDTH = 420;
const HEIGHT = 200;
const CHARACTER = 6.8; // the widest of a label, in units of the picture
const EDGE = { left: 46, right: 10, top: 10, bottom: 24 };

function canvas(label, height = HEIGHT, width = WIDTH) {
  return drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

// About n round numbers from low to high. Where the two are equal, or nearly so, their value.
function ticks(low, high, n = 4) {
  if (!(high - low > 1e-12 * Math.max(Math.abs(low), Math.abs(high)))) return [high];
  const raw = (high - low) / n;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * size).find((s) => s >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step || 0);
  return found;
}

const between = (low, high, from, to) => (value) =>
  from + ((value - low) / (high - low || 1)) * (to - from);

// Draw the grid and its labels. Returns the vertical scale, and where the labels leave room for the chart to begin.
function frame(svg, yLow, yHigh, height = HEIGHT, whole = false) {
  const y = between(yLow, yHigh, height - EDGE.bottom, EDGE.top);
  const values = ticks(yLow, yHigh, 3).filter((v) => !whole || Number.isInteger(v));
  const texts = axisLabels(values);
  const left = Math.max(EDGE.left, ...texts.map((text) => CHARACTER * text.length + 10));
  values.forEach((value, n) => {
    svg.append(
      drawn("line", { class: "grid", x1: left, x2: WIDTH - EDGE.right, y1: y(value), y2: y(value) }),
      drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, texts[n]),
    );
  });
  return [y, left];
}

const magnitude = (value) => Math.floor(Math.log10(Math.abs(value)) + 1e-9);

// Labels of an axis' values in rising order, with as many digits as tell neighbours apart.
function axisLabels(values) {
  const gaps = values.slice(1).map((value, n) => value - values[n]);
  const most = Math.max(...values.map(Math.abs));
  const last = magnitude(gaps.length ? Math.min(...gaps) : most / 100 || 1);
  const digits = (value, size) => String(Number((value / size).toFixed(Math.max(0, Math.min(20, magnitude(size) - last)))));
  if (most >= 1e15 || (most > 0 && most < 1e-3)) {
    return values.map((value) => (value === 0 ? "0" : value.toExponential(Math.max(0, Math.min(20, magnitude(value) - last)))));
  }
  if (most < 1e5) return values.map((value) => digits(value, 1));
  const [unit, size] = unitOf(most);
  return values.map((value) => (value === 0 ? "0" : `${digits(value, size)} ${unit}`));
}

// Draw labels below a chart, moved inwards where one would leave the picture.
function labelAcross(svg, values, x, height = HEIGHT) {
  const texts = axisLabels(values);
  values.forEach((value, n) => {
    const half = (CHARACTER * texts[n].length) / 2;
    const place = Math.min(WIDTH - half, Math.max(half, x(value)));
    svg.append(drawn("text", { x: place, y: height - 7, "text-anchor": "middle" }, texts[n]));
  });
}

function histogram(bars, width) {
  const total = bars.reduce((sum, [, n]) => sum + n, 0);
  const values = bars.map(([value]) => value);
  const scale = width === 0 && values.every((v) => v >= 0 && v <= 10);
  const gaps = values.slice(1).map((v, i) => v - values[i]);
  const step = width || (scale ? Math.min(1, ...gaps) : Math.min(...gaps, 1));
  const shares = scale && values[values.length - 1] <= 1 && values.some((v) => v < 1);
  const low = shares ? 0 : scale ? Math.min(1, values[0]) : values[0];
  const high = shares ? 1 : scale ? 10 : values[values.length - 1];
  const svg = canvas(`Histogram of ${count(total)} ratings from ${num(values[0])} to ${num(values[values.length - 1])}`);
  const [y, left] = frame(svg, 0, Math.max(...bars.map(([, n]) => n)), HEIGHT, true);
  const x = between(low - step / 2, high + step / 2, left, WIDTH - EDGE.right);
  const wide = Math.max(1.5, (x(step) - x(0)) * 0.86);
  for (const [value, n] of bars) {
    const bar = drawn("rect", { class: "bar", x: x(value) - wide / 2, width: wide, y: y(n), height: y(0) - y(n), rx: 1.5 });
    bar.append(drawn("title", {}, `${num(value)}: ${num(n, 0)} (${percent(n / total)})`));
    svg.append(bar);
  }
  labelAcross(svg, scale && !shares ? [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] : ticks(low, high, 5), x);
  return svg;
}

function timeAxis(svg, x, from, to, height = HEIGHT) {
  const days = to - from > 86400;
  for (const part of [0, 0.5, 1]) {
    const at = from + part * (to - from);
    const anchor = ["start", "middle", "end"][2 * part];
    const text = to - from < 180 ? `${num(at - from, 0)} s` : clock(at, days);
    svg.append(drawn("text", { x: x(at), y: height - 7, "text-anchor": anchor }, text));
  }
}

// Mean rating with one standard deviation on either side; a gap where nothing came.
function ratingsOverTime(series, slot) {
  const points = series.filter((p) => known(p.mean));
  const [from, to] = [points[0].at, points[points.length - 1].at + slot];
  const ends = points.flatMap((p) => [p.mean - p.spread, p.mean + p.spread]);
  const scale = ends.every((v) => v >= -1 && v <= 12);
  const [low, high] = scale ? [1, 10] : [Math.min(...ends), Math.max(...ends)];
  const last = points[points.length - 1];
  const svg = canvas(`Mean rating over time, ${num(points[0].mean)} at first and ${num(last.mean)} at last`);
  const [y, left] = frame(svg, low, high);
  const x = between(from, to, left, WIDTH - EDGE.right);
  const inside = (value) => y(Math.min(high, Math.max(low, value)));
  for (const stretch of stretches(points, slot)) {
    const across = stretch.map((p) => [x(p.at + slot / 2), p]);
    const upper = across.map(([px, p]) => `${px},${inside(p.mean + p.spread)}`);
    const lower = across.map(([px, p]) => `${px},${inside(p.mean - p.spread)}`).reverse();
    svg.append(drawn("polygon", { class: "band", points: [...upper, ...lower].join(" ") }));
    svg.append(drawn("polyline", { class: "line", points: across.map(([px, p]) => `${px},${inside(p.mean)}`).join(" ") }));
    if (across.length === 1) svg.append(drawn("circle", { class: "dot", cx: across[0][0], cy: inside(stretch[0].mean), r: 2.5 }));
  }
  timeAxis(svg, x, from, to);
  return svg;
}

function stretches(points, slot) {
  const found = [];
  for (const point of points) {
    const last = found[found.length - 1];
    if (last && point.at - last[last.length - 1].at <= 3 * slot) last.push(point);
    else found.push([point]);
  }
  return found;
}

// Judgements a second in each slot, and below those that failed.
function throughput(series, slot) {
  const [from, to] = [series[0].at, series[series.length - 1].at + slot];
  const most = Math.max(...series.map((p) => p.judged)) / slot;
  const svg = canvas(`Judgements a second over time, ${rate(most)} at most`);
  const [y, left] = frame(svg, 0, most);
  const x = between(from, to, left, WIDTH - EDGE.right);
  const wide = Math.max(1, x(slot) - x(0) + (series.length < 80 ? -1 : 0.3));
  for (const p of series) {
    for (const [name, n] of [["bar", p.judged], ["failed", p.failed]]) {
      if (!n) continue;
      const top = y(n / slot);
      svg.append(drawn("rect", { class: name, x: x(p.at), width: wide, y: top, height: y(0) - top }));
    }
  }
  timeAxis(svg, x, from, to);
  return svg;
}

// A curve of (x, y) points, as of a trainer's figure. sizes: x is N of best-of-N, on a log scale.
function curve(points, label, { height = 130, sizes = false } = {}) {
  const across = sizes ? Math.log2 : (v) => v;
  const [xs, ys] = [points.map(([v]) => v), points.map(([, v]) => v)];
  const svg = canvas(label, height);
  const room = (Math.max(...ys) - Math.min(...ys)) * 0.05 || Math.abs(ys[0]) * 0.1 || 1;
  const [y, left] = frame(svg, Math.min(...ys) - room, Math.max(...ys) + room, height);
  const place = between(across(Math.min(...xs)), across(Math.max(...xs)), left + 4, WIDTH - EDGE.right - 4);
  const x = (value) => place(across(value));
  svg.append(drawn("polyline", { class: "line", points: points.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") }));
  for (const [a, b] of points.length < 3 || sizes ? points : []) {
    const dot = drawn("circle", { class: "dot", cx: x(a), cy: y(b), r: 3 });
    dot.append(drawn("title", {}, `${num(a)}: ${num(b)}`));
    svg.append(dot);
  }
  labelAcross(svg, sizes ? apart(xs, x) : roundOnes(xs), x, height);
  return svg;
}

function roundOnes(xs) {
  const shown = xs.length > 1 ? ticks(Math.min(...xs), Math.max(...xs), 4) : xs;
  return shown.filter((v) => !xs.every(Number.isInteger) || Number.isInteger(v));
}

// Sizes whose labels do not overlap. The last one is always shown: it need not be a power of two.
function apart(xs, x) {
  const found = [];
  for (const value of [...xs].reverse()) if (!found.length || x(found[found.length - 1]) - x(value) >= 22) found.push(value);
  return found.reverse();
}

// One dot a candidate; equal ones stand above each other.
function strip(values, low, high) {
  const [width, height] = [180, 30];
  const svg = canvas(`${plural(values.length, "candidate", "candidates")} from ${num(values[0])} to ${num(values[values.length - 1])}`, height, width);
  const x = between(low, high, 8, width - 8);
  svg.append(drawn("line", { class: "grid", x1: 4, x2: width - 4, y1: height - 5, y2: height - 5 }));
  const stacks = new Map();
  for (const value of values) {
    const place = Math.round(x(value) / 4);
    stacks.set(place, (stacks.get(place) || 0) + 1);
  }
  for (const [place, n] of stacks) {
    const gap = Math.min(4.5, (height - 12) / n);
    for (let k = 0; k < n; k++) svg.append(drawn("circle", { class: "dot", cx: place * 4, cy: height - 8 - k * gap, r: 2.4 }));
  }
  return svg;
}

// The probability of each rating at the slot where the judge wrote it.
function distribution(given, value) {
  // A half point that the judge wrote comes after the whole ones.
  const numbers = given.every(([label]) => label.trim() !== "" && Number.isFinite(Number(label)));
  const pairs = numbers ? [...given].sort(([a], [b]) => Number(a) - Number(b)) : given;
  const [width, height] = [260, 64];
  const svg = canvas(`Probability of each rating: ${pairs.map(([label, p]) => `${label} ${percent(p)}`).join(", ")}`, height, width);
  const most = Math.max(...pairs.map(([, p]) => p), 1e-9);
  const wide = width / pairs.length;
  pairs.forEach(([label, p], n) => {
    const tall = (p / most) * (height - 20);
    const kind = Number(label) === value ? "bar chosen" : "bar";
    const bar = drawn("rect", { class: kind, x: n * wide + 2, width: wide - 4, y: height - 16 - tall, height: tall, rx: 1.5 });
    bar.append(drawn("title", {}, `${label}: ${percent(p)}`));
    svg.append(bar, drawn("text", { x: (n + 0.5) * wide, y: height - 3, "text-anchor": "middle" }, label));
  });
  return svg;
}
