"use strict";
const PAGE = 10;
const results = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
let start = 0;

// Sort a table by the column of the button: numbers descending first, then the other way.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const table = head.closest("table");
    const column = [...head.parentNode.children].indexOf(head);
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.children[column].dataset.value;
    const missing = (row) => key(row) === undefined || key(row) === "";
    const compare = (a, b) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      const [x, y] = [Number(key(a)), Number(key(b))];
      const order = Number.isNaN(x) || Number.isNaN(y) ? key(a).localeCompare(key(b)) : x - y;
      return down ? -order : order;
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort(compare));
  });
}

function element(kind, className, text) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function options(select, names) {
  select.replaceChildren(
    ...names.map(([value, text]) => {
      const made = element("option", "", text);
      made.value = value;
      return made;
    }),
  );
}

function titled(title, text) {
  const made = element("div");
  made.append(element("h4", "", title), element("div", "text", text));
  return made;
}

function card(item) {
  const made = element("article", "card");
  const header = element("header");
  header.append(element("span", "tag", `row ${item.line}`), element("span", "tag", item.group));
  for (const tag of item.tags) header.append(element("span", `tag ${tag}`, tag));
  for (const fact of item.facts) header.append(element("span", "tag", fact));
  made.append(header, titled("query", item.query));
  for (const part of [item.responses, item.judgements]) {
    const pair = element("div", "pair");
    pair.append(...part.map(([title, text]) => titled(title, text)));
    made.append(pair);
  }
  return made;
}

function chosen() {
  const [group, tag] = [byId("group").value, byId("tag").value];
  const search = byId("search").value.toLowerCase();
  const inside = (item) =>
    [item.query, ...item.responses.flat(), ...item.judgements.flat()].some((text) =>
      text.toLowerCase().includes(search),
    );
  return results[byId("result").value].items.filter(
    (item) =>
      (!group || item.group === group) &&
      (!tag || item.tags.includes(tag)) &&
      (!search || inside(item)),
  );
}

function show() {
  const items = chosen();
  start = Math.max(0, Math.min(start, Math.floor((items.length - 1) / PAGE) * PAGE));
  const page = items.slice(start, start + PAGE);
  byId("judgements").replaceChildren(...page.map(card));
  const range = page.length ? `${start + 1} to ${start + page.length} of ` : "";
  byId("count").textContent = `${range}${items.length} judgements`;
  byId("previous").disabled = start === 0;
  byId("next").disabled = start + PAGE >= items.length;
}

function changeResult() {
  const items = results[byId("result").value].items;
  const groups = [...new Set(items.map((item) => item.group))];
  const tags = [...new Set(items.flatMap((item) => item.tags))].sort();
  options(byId("group"), [["", "all groups"], ...groups.map((name) => [name, name])]);
  options(byId("tag"), [["", "all"], ...tags.map((name) => [name, name])]);
  first();
}

function first() {
  start = 0;
  show();
}

if (results.length) {
  options(byId("result"), results.map((result, index) => [String(index), result.title]));
  byId("result").addEventListener("change", changeResult);
  for (const id of ["group", "tag"]) byId(id).addEventListener("change", first);
  byId("search").addEventListener("input", first);
  byId("previous").addEventListener("click", () => { start -= PAGE; show(); });
  byId("next").addEventListener("click", () => { start += PAGE; show(); });
  changeResult();
} else {
  byId("count").textContent = "no result has judged rows beside it";
}
