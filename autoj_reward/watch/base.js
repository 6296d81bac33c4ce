// Texts reach the page by textContent alone: whatever they hold, they stay text.

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const KEY = "autoj-watch";

function element(kind, className, ...inside) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  made.append(...inside.filter((part) => part !== null && part !== undefined));
  return made;
}

function drawn(kind, attributes, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function button(text, className, action) {
  const made = element("button", className, text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

function options(select, pairs) {
  const kept = select.value;
  const same = (option, n) => pairs[n] && option.value === pairs[n][0] && option.text === pairs[n][1];
  if (select.options.length === pairs.length && [...select.options].every(same)) return;
  select.replaceChildren(
    ...pairs.map(([value, text]) => {
      const made = element("option", "", text);
      made.value = value;
      return made;
    }),
  );
  if (pairs.some(([value]) => value === kept)) select.value = kept;
}

// The token comes behind the # of the address, and leaves it at once.
function token() {
  const given = location.hash.slice(1);
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY) || "";
}

// A report's own data, or null where a server is asked.
const EMBEDDED = JSON.parse(byId("data").textContent);

async function ask(name, question = {}) {
  if (EMBEDDED) return embeddedAnswer(name, question);
  const wanted = new URLSearchParams(question).toString();
  const headers = { Authorization: `Bearer ${token()}` };
  const answer = await fetch(`api/${name}?${wanted}`, { headers, cache: "no-store" });
  const told = await answer.json();
  if (answer.ok) return told;
  const error = new Error(told.detail || `the answer was ${answer.status}`);
  error.status = answer.status;
  throw error;
}

const DASH = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

function num(value, digits = 2) {
  return known(value) ? value.toLocaleString("en", { maximumFractionDigits: digits }) : DASH;
}

// A number of a trainer: a small one, such as a learning rate, keeps its digits.
function exact(value) {
  return known(value) && value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(2) : num(value, 4);
}

// The unit in which an amount has three digits before the point at most, where there is one.
function unitOf(value) {
  const units = [["k", 1e3], ["M", 1e6], ["B", 1e9], ["T", 1e12]];
  return units.find(([, size]) => value < 999.5 * size) || units[units.length - 1];
}

function count(value) {
  if (!known(value) || value < 100000) return num(value, 0);
  const [unit, size] = unitOf(value);
  const amount = value / size;
  return `${amount < 999.5 ? amount.toPrecision(3) : num(amount, 0)} ${unit}`;
}

// A share of 0 to 1, which reads 0 % or 100 % only when it is so.
function percent(share) {
  if (!known(share)) return DASH;
  if (share > 0 && share < 0.001) return "<0.1 %";
  if (share > 0.999 && share < 1) return ">99.9 %";
  return `${num(100 * share, 1)} %`;
}

function rate(value) {
  if (!known(value)) return DASH;
  return value >= 100 ? num(value, 0) : String(Number(value.toPrecision(3)));
}

function duration(seconds) {
  if (!known(seconds)) return DASH;
  if (seconds > 0 && seconds < 0.0005) return "<1 ms";
  if (seconds < 0.9995) return seconds ? `${num(1000 * seconds, 0)} ms` : "0 s";
  if (seconds < 9.95) return `${num(seconds, 1)} s`;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

function clock(at, days = false) {
  const day = days ? { month: "short", day: "numeric" } : {};
  return new Date(1000 * at).toLocaleString("en", { hour: "2-digit", minute: "2-digit", hour12: false, ...day });
}

const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;
const share = (part, whole) => (whole > 0 ? part / whole : null);
// The name of a candidate's number: a rating, or a score of its group or rubric.
const valueName = (summary) => (summary ? summary.value_name : "rating");
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const words = (name) => name.replaceAll("_", " ");
