const opened = { at: -1, row: null, told: null, one: "", two: "", turn: 0 };

async function openQuery(n) {
  opened.at = n;
  opened.row = list.rows[n];
  byId("previous").disabled = n <= 0;
  byId("following").disabled = n >= list.rows.length - 1;
  if (!byId("detail").open) byId("detail").showModal();
  byId("body").replaceChildren(element("p", "muted", "Reading…"));
  const turn = ++opened.turn;
  const told = await ask("query", { id: opened.row.id, view: byId("view").value });
  if (turn !== opened.turn) return;
  const found = told.candidates;
  const best = found.find((c) => c.chosen) || found[0];
  const rated = found.filter((c) => known(c.values[byId("view").value]) && c !== best);
  const worst = rated[rated.length - 1] || found.find((c) => c !== best);
  Object.assign(opened, { told, one: best?.name || "", two: worst?.name || "" });
  drawQuery();
  await showPair();
}

function drawQuery() {
  const { told } = opened;
  byId("detail-head").textContent = `Query ${opened.at + 1} of ${num(list.total, 0)}`;
  const context = Object.entries(told.context).map(([name, text]) => titled(words(name), text));
  const pair = element("div", "");
  pair.id = "pair";
  const kept = told.candidates.length < told.total ? ` The best and worst ${told.candidates.length} of ${count(told.total)} are listed.` : "";
  const together = told.relative ? relativeSection(told.relative, told.candidates) : null;
  const inside = [titled("query", told.text), ...context, ...(told.choice ? choice(told.choice) : []), ...(together ? [together] : []), pair];
  if (told.candidates.length > 1) {
    inside.push(element("h3", "", plural(told.total, "candidate", "candidates")));
    inside.push(element("p", "muted small", `Choose two to compare, A and B.${kept}`), candidatesTable());
  }
  byId("body").replaceChildren(...inside);
}

// Why a job kept the response that it kept, and what N bought in this query.
function choice(c) {
  const made = [element("p", "why", c.why)];
  if (c.curve.length > 1) made.push(element("div", "bought", curve(c.curve, "Best value by N in this query", { sizes: true }), element("p", "muted small", "best of N of these candidates")));
  return made;
}

function titled(title, text, className = "text") {
  const body = element("div", className, text || element("span", "empty", "empty"));
  body.tabIndex = 0;
  body.setAttribute("role", "region");
  body.setAttribute("aria-label", title);
  return element("div", "titled", element("h4", "", title), body);
}

// Columns that a job's report has beside the others: a candidate's number and the policy's
// log-probability.
const EXTRA = [["candidate", (c) => c.candidate], ["logprob", (c) => num(c.logprob)]];

// The name of a view. In a report of scores the rating is the score.
const shownView = (view) => (EMBEDDED && view === "rating" ? valueName(EMBEDDED.run.summary) : view);

function candidatesTable() {
  const view = byId("view").value;
  const { candidates } = opened.told;
  const values = [view, "expected", "direct"].filter((name, n, all) => all.indexOf(name) === n && (n === 0 || candidates.some((c) => known(c.values[name]))));
  const extra = EXTRA.filter(([name]) => candidates.some((c) => c[name] !== undefined && c[name] !== null));
  const heads = ["A", "B", ...values.map(shownView), ...extra.map(([name]) => name), "outcome", "response"];
  const body = element("tbody", "");
  for (const c of candidates) {
    const row = element("tr", "");
    for (const key of ["one", "two"]) {
      const radio = element("input", "");
      Object.assign(radio, { type: "radio", name: key, value: c.name, checked: opened[key] === c.name });
      radio.setAttribute("aria-label", `${key === "one" ? "A" : "B"}: ${c.text.slice(0, 60)}`);
      radio.addEventListener("change", () => { opened[key] = c.name; guarded(showPair)(); });
      row.append(element("td", "", radio));
    }
    row.append(...values.map((name) => element("td", "number", num(c.values[name]))), ...extra.map(([, text]) => element("td", "", text(c))));
    const marks = element("td", "", c.chosen ? element("span", "chip ok", "chosen") : null, chip(c.outcome), ...c.flags.map((flag) => element("span", "chip flag", words(flag))), c.forced ? element("span", "chip", "forced") : null);
    row.append(marks, element("td", "said", c.text));
    body.append(row);
  }
  const head = element("tr", "", ...heads.map((name) => element("th", "", name)));
  for (const cell of head.children) cell.scope = "col";
  return element("div", "scroll", element("table", "candidates", element("thead", "", head), body));
}

const chip = (outcome) => element("span", `chip outcome ${outcome === "ok" ? "ok" : "bad"}`, words(outcome));

async function showPair() {
  const turn = ++opened.turn;
  const question = { id: opened.told.id };
  if (opened.one) question.one = opened.one;
  if (opened.two && opened.two !== opened.one) question.two = opened.two;
  const told = await ask("pair", question);
  if (turn !== opened.turn) return;
  const columns = told.candidates.map((c, n) => column(c, n ? "B" : "A"));
  const found = told.comparisons.map((c) => comparison(c));
  byId("pair").replaceChildren(element("div", "two", ...columns), ...(found.length ? [element("h3", "", "Compared with each other"), ...found] : []));
}

function column(c, letter) {
  const listed = opened.told.candidates;
  const place = listed.findIndex((other) => other.name === c.name);
  const view = byId("view").value;
  const own = listed[place];
  const rated = listed.filter((other) => known(other.values[view]));
  const ends = listed.length < 2 || !own ? [] : [
    own.chosen && "chosen",
    rated.length && own.values[view] === rated[0].values[view] && "best",
    rated.length > 1 && own === rated[rated.length - 1] && own.values[view] !== rated[0].values[view] && "worst",
  ];
  const name = ends.filter(Boolean).join(" · ");
  const head = element("header", "", element("span", "letter", letter), element("b", "", own ? num(own.values[view]) : DASH), element("span", "muted", name));
  const made = element("section", `column ${letter}`, head, titled("response", c.response));
  made.setAttribute("aria-label", `Candidate ${letter}`);
  if (c.rubric.length) made.append(rubricTable(c.rubric));
  for (const j of c.judgements) made.append(judgement(j, c.judgements.length));
  if (!c.judgements.length) made.append(element("p", "muted", "It was not rated alone."));
  return made;
}

// The verdict on each item of a candidate's rubric. The share is the probability that it is met.
function rubricTable(items) {
  const body = items.map((own) => {
    const points = `${own.points > 0 ? "+" : ""}${num(own.points)}`;
    const said = own.answer || (own.reason ? "no verdict" : DASH);
    const row = element("tr", "", element("td", "number", points), element("td", "", said),
      element("td", "number", known(own.share) ? percent(own.share) : DASH),
      element("td", "", own.criterion, own.kind ? element("span", "chip", own.kind) : null));
    if (own.reason) row.title = own.reason;
    return row;
  });
  const head = element("tr", "", ...["points", "answer", "share", "criterion"].map((name) => element("th", "", name)));
  for (const cell of head.children) cell.scope = "col";
  const note = EMBEDDED ? null : element("p", "muted small", "Points are those of the run that asked first: a journal keeps them.");
  return element("div", "scroll", element("table", "rubric", element("thead", "", head), element("tbody", "", ...body)), note);
}

function facts(j) {
  const found = [];
  if (known(j.rating)) found.push(`${shownView("rating")} ${num(j.rating)}`);
  if (known(j.expected)) found.push(`expected ${num(j.expected)}`);
  if (known(j.direct)) found.push(`direct ${num(j.direct)}`);
  for (const [slot, label] of j.readings || []) {
    if (!/^(item_|rubric\/)/.test(slot)) found.push(`${slot} ${label}`);
  }
  if (j.tokens_in) found.push(`${num(j.tokens_in, 0)} tokens read, ${num(j.tokens_out, 0)} written`);
  if (j.latency_s) found.push(`${num(j.latency_s)} s${j.queued_s ? ` after ${num(j.queued_s)} s in the queue` : ""}`);
  return found.join(" · ");
}

function judgement(j, several) {
  const head = element("p", "facts", chip(j.outcome), j.kind === "reading" ? element("span", "chip", "at a glance") : null,
    j.forced ? element("span", "chip", "forced") : null, ...j.flags.map((flag) => element("span", "chip flag", words(flag))), element("span", "muted small", facts(j)));
  const made = element("div", "judgement", head);
  if (j.reason) made.append(element("p", "reason", j.reason));
  if (j.distribution && j.distribution.length > 1) made.append(element("div", "spread", distribution(j.distribution, j.rating)));
  const title = j.about ? `critique: ${j.about}` : several > 1 ? `critique ${j.sample + 1}${known(j.rating) ? `, rating ${num(j.rating)}` : ""}` : "critique";
  if (j.critique) made.append(titled(title, j.critique));
  if (j.thinking) made.append(element("details", "", element("summary", "", "what the judge thought before"), titled("thinking", j.thinking)));
  return made;
}

function comparison(c) {
  const letter = (name) => (name === opened.one ? "A" : "B");
  const said = { first: `${letter(c.one)} wins`, second: `${letter(c.two)} wins`, tie: "tie" }[c.verdict] || words(c.verdict || c.outcome);
  const odds = c.confidence.map(([label, p]) => `${label} ${percent(p)}`).join(", ");
  const head = element("p", "facts", element("b", "", said), element("span", "muted small", [c.both ? "both orders" : `${letter(c.one)} shown first`, odds, facts(c)].filter(Boolean).join(" · ")));
  const made = element("div", "card", head);
  if (c.reason) made.append(element("p", "reason", c.reason));
  if (c.critique) made.append(titled("critique", c.critique));
  return made;
}
