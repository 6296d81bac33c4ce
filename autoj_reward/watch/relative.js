// Responses that were judged together. Numbers are ranks: 1 is the best.

function relativeSection(told, candidates) {
  const ranked = told.scores; // best first
  const rank = new Map(ranked.map((own, n) => [own.name, String(n + 1)]));
  const label = (name) => rank.get(name) || (name === "reference" ? "ref" : DASH);
  const inside = [element("h3", "", "Judged together"), scoresCard("Scores", UNITS[told.unit], told, candidates)];
  if (told.orders.length) inside.push(ordersCard(told, label));
  if (told.matches.length) inside.push(matrixCard("Comparisons", told, ranked, label));
  return element("section", "relative", ...inside);
}

// The groups of a whole job by rank: the mean score of each rank, and how often ranks won against each other.
function rankCards(told) {
  const over = `mean over ${plural(told.queries, "query", "queries")}`;
  const cards = [scoresCard("Scores by rank", `${UNITS[told.unit]}, ${over}`, told, [])];
  if (told.matches.length) cards.push(matrixCard("Comparisons by rank", told, told.scores, (name) => name));
  return cards;
}

const UNITS = {
  "share of the scale": "share of the judge's scale, 0 to 1",
  "points of the judge's scale": "points of the judge's scale, mean over the orders",
  "win rate": "expected win rate against a random other response",
};

function scoresCard(title, unit, told, candidates) {
  const ranked = told.scores;
  const ends = ranked.filter((own) => known(own.score)).flatMap((own) => [own.score - (own.error || 0), own.score + (own.error || 0)]);
  const shares = told.unit !== "points of the judge's scale";
  const [low, high] = shares ? [0, 1] : [Math.min(1, ...ends), Math.max(10, ...ends)];
  const text = new Map(candidates.map((c) => [c.name, c.text]));
  const rows = ranked.map((own, n) => element("li", "", element("span", "place", String(n + 1)), scoreBar(own, low, high),
    element("span", "value", scoreText(own)), element("span", "said small", text.get(own.name) || "")));
  const kept = told.queries ? "first" : "best and worst";
  const more = told.total > ranked.length ? ` The ${kept} ${ranked.length} of ${count(told.total)} are shown.` : "";
  const line = ranked.some((own) => own.error) ? "; the line is one standard error" : "";
  return card(title, `${unit}${line}.${more}`, element("ol", "scores", ...rows));
}

const fixed = (value) => (known(value) ? value.toFixed(2) : DASH);
const scoreText = (own) => (known(own.score) ? `${fixed(own.score)}${known(own.error) ? ` ± ${fixed(own.error)}` : ""}` : "no score");

function scoreBar(own, low, high) {
  const [width, height] = [200, 18];
  const svg = canvas(`Score ${scoreText(own)}`, height, width);
  const x = between(low, high, 2, width - 2);
  const inside = (value) => Math.min(width - 1, Math.max(1, x(value)));
  svg.append(drawn("rect", { class: "track", x: 2, width: width - 4, y: 5, height: 8, rx: 4 }));
  if (!known(own.score)) return svg;
  svg.append(drawn("rect", { class: "bar", x: 2, width: Math.max(2, x(own.score) - 2), y: 5, height: 8, rx: 4 }));
  if (own.error) {
    const [from, to] = [inside(own.score - own.error), inside(own.score + own.error)];
    svg.append(drawn("path", { class: "error", d: `M${from} 9H${to}M${from} 4V14M${to} 4V14` }));
  }
  return svg;
}

// One row for each order that was judged: which response stood where, and what it got there.
function ordersCard(told, label) {
  const longest = Math.max(...told.orders.map((own) => own.length));
  const scores = told.orders.flat().map((own) => own.score).filter(known);
  const strength = between(Math.min(...scores), Math.max(...scores), 4, 40);
  const body = told.orders.map((own, n) => element("tr", "", heading(String(n + 1), "row"), ...own.map((cell) => {
    const made = element("td", cell.forced ? "forced" : "", element("span", "place", label(cell.name)), element("b", "", fixed(cell.score)));
    if (known(cell.score)) made.style.setProperty("--won", `${strength(cell.score)}%`);
    made.title = [`response ${label(cell.name)}`, known(cell.score) ? `score ${num(cell.score)}` : "no score", cell.forced ? "forced" : ""].filter(Boolean).join(", ");
    return made;
  })));
  const heads = [heading("order", "col"), ...Array.from({ length: longest }, (_, n) => heading(String(n + 1), "col"))];
  const forced = told.orders.some((own) => own.some((cell) => cell.forced)) ? " A dashed cell is a forced score." : "";
  const facts = [
    known(told.order_spread) && `a response's scores differ by ${num(told.order_spread)} over the orders`,
    known(told.position_correlation) && `correlation of score and position ${num(told.position_correlation)}`,
  ].filter(Boolean);
  const more = told.orders_total > told.orders.length ? ` ${told.orders.length} of ${told.orders_total} orders are shown.` : "";
  return card("Orders", `By position; a number in a circle is a response.${forced}${more}${facts.length ? ` On average ${facts.join("; ")}.` : ""}`, grid(heads, body));
}

// Won share of the row against the column.
function matrixCard(title, told, ranked, label) {
  const won = new Map();
  for (const { one, two, won: share } of told.matches) {
    won.set(`${one} ${two}`, share);
    won.set(`${two} ${one}`, known(share) ? 1 - share : null);
  }
  const met = new Set(told.matches.flatMap((m) => [m.one, m.two]));
  const names = [...ranked.map((own) => own.name), "reference"].filter((name) => met.has(name));
  const body = names.map((one) => element("tr", "", heading(label(one), "row"), ...names.map((two) => {
    if (one === two) return element("td", "own", "");
    const share = won.get(`${one} ${two}`);
    if (share === undefined) return element("td", "", "");
    const made = element("td", known(share) ? (share >= 0.5 ? "win" : "loss") : "", known(share) ? num(100 * share, 0) : "×");
    if (known(share)) made.style.setProperty("--won", `${Math.abs(share - 0.5) * 80}%`);
    made.title = `${label(one)} against ${label(two)}: ${known(share) ? `won ${percent(share)}` : "failed"}`;
    return made;
  })));
  const failed = told.matches.some((m) => !known(m.won)) ? " × is a failed comparison." : "";
  const head = [heading("", "col"), ...names.map((name) => heading(label(name), "col"))];
  return card(title, `Percent that the row won against the column; an empty cell was not compared.${failed}`, grid(head, body));
}

function heading(text, scope) {
  const made = element("th", "", text);
  made.scope = scope;
  return made;
}

const grid = (heads, body) => element("div", "scroll", element("table", "heat", element("thead", "", element("tr", "", ...heads)), element("tbody", "", ...body)));
