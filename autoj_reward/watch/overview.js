const STATES = { running: "running", finished: "finished", stopped: "stopped", unknown: "on record" };

function card(title, note, ...inside) {
  return element("section", "card", element("h3", "", title), ...inside, note ? element("p", "muted small", note) : null);
}

const NAMED = 12;

function table(counts, whole) {
  const named = Object.entries(counts);
  const rows = named.slice(0, NAMED).map(([name, n]) => [words(name), num(n, Number.isInteger(n) ? 0 : 2), whole ? percent(n / whole) : ""]);
  const rest = named.slice(NAMED).reduce((sum, [, n]) => sum + n, 0);
  if (named.length > NAMED) rows.push([`${named.length - NAMED} more kinds`, num(rest, 0), whole ? percent(rest / whole) : ""]);
  return rowsOf(rows);
}

function rowsOf(rows) {
  const body = element("tbody", "");
  for (const cells of rows) {
    body.append(element("tr", "", ...cells.map((text, k) => element(k ? "td" : "th", "", text))));
  }
  for (const head of body.querySelectorAll("th")) head.scope = "row";
  return element("table", "counts", body);
}

function showTop(run) {
  document.title = `${run.name} · autoj watch`;
  byId("name").textContent = run.name;
  const chip = byId("state");
  if (chip.textContent !== STATES[run.state]) chip.textContent = STATES[run.state];
  chip.className = `chip ${run.state}`;
  const facts = [run.path];
  const { journal } = run;
  if (run.judges.length) facts.push(`judge ${run.judges[run.judge]}`);
  if (run.summary && run.summary.curve) facts.push(`ranked by ${run.summary.scored_by ? `scores (${run.summary.scored_by})` : run.summary.view}`);
  if (journal && journal.first) facts.push(`began ${clock(journal.first, true)}`);
  if (journal && journal.last) facts.push(`last judgement ${duration(Math.max(0, run.now - journal.last))} ago`);
  byId("about").textContent = facts.filter(Boolean).join(" · ");
  showProgress(run);
}

function progressOf(run) {
  if (run.training && run.training.steps) return [run.training.step, run.training.steps, "steps"];
  if (!run.journal) return null;
  const { kinds, judged } = run.journal;
  const done = run.scored_by ? judged : (kinds.rating || 0) + (kinds.reading || 0) || kinds.comparison || 0;
  const under = run.state === "running" || run.state === "stopped";
  return under && run.total > 0 && done <= run.total ? [done, run.total, "judgements"] : null;
}

function showProgress(run) {
  const found = progressOf(run);
  byId("progress").hidden = !found;
  if (!found) return;
  const [done, all, unit] = found;
  const bar = byId("progress").firstElementChild;
  bar.setAttribute("aria-valuenow", done);
  bar.setAttribute("aria-valuemax", all);
  bar.firstElementChild.style.width = `${Math.min(100, (100 * done) / all)}%`;
  const speed = unit === "steps" ? done / (run.now - run.journal.first) : run.journal.lately;
  const left = run.state === "running" && done < all && speed > 0 ? ` · about ${duration((all - done) / speed)} left` : "";
  byId("progress-text").textContent = `${num(done, 0)} of ${num(all, 0)} ${unit}${left}`;
}

function showNotices(run) {
  const said = [...run.notices];
  const { journal } = run;
  if (run.reading) said.push(`Reading the journal: ${num(journal.judged, 0)} judgements so far.`);
  if (run.trouble) said.push(run.trouble);
  if (run.damaged) said.push(`${plural(run.damaged, "row of the journal is", "rows of the journal are")} not as written, and left out here.`);
  if (journal && !journal.judged && !run.reading) said.push(...explainNothing(run));
  if (run.training && run.training.without_events) said.push("The trainer's TensorBoard files cannot be read here: pip install tensorboard.");
  const failed = journal && !run.statistics.candidates ? share(journal.failed, journal.judged) : 0;
  if (failed > 0.05) said.push(`${percent(failed)} of the judgements failed: ${Object.keys(journal.failures)[0]}.`);
  const shown = byId("notices");
  if (shown.textContent === said.join("")) return;
  shown.replaceChildren(...said.map((text) => element("p", "warn", text)));
}

// A trainer may judge without a journal, and a judge's own training judges nothing.
function explainNothing({ recorded, training }) {
  if (recorded || !training) return ["Nothing is judged yet. What comes is shown here as it comes."];
  return training.judged ? ["This run keeps no journal, so its judgements are not shown: name one as the journal of its reward."] : [];
}

// Rows of a journal and candidates are counted apart: k critiques of a candidate are k judgements.
function showTiles(run, view) {
  const { statistics, journal, summary } = run;
  const own = run.views[view];
  const { usage, outcomes } = statistics;
  const seconds = journal ? Math.max(1, journal.last - journal.first) : null;
  const cost = statistics.candidates || !journal ? usage : journal;
  const named = (counts) => Object.entries(counts).filter(([name, n]) => n && name !== "ok").map(([name, n]) => `${count(n)} ${words(name)}`).slice(0, 3).join(", ");
  const value = valueName(summary);
  const failed = known(statistics.ok_share) ? 1 - statistics.ok_share : journal && share(journal.failed, journal.judged);
  const tiles = [];
  if (journal) {
    const speed = run.state === "running" ? `${rate(journal.lately)} a second now, ${rate(journal.judged / seconds)} on average` : `${rate(journal.judged / seconds)} a second on average`;
    tiles.push(["judgements", count(journal.judged), journal.judged ? speed : ""]);
  } else {
    tiles.push(["judgements a second", rate(summary.judgements_per_second), `${count(summary.reused)} read from the journal`]);
  }
  const left = summary && summary.rows_left_out ? `, ${plural(summary.rows_left_out, "row", "rows")} left out` : "";
  tiles.push(
    ["candidates", count(statistics.candidates), `of ${plural(statistics.queries, "query", "queries")}${left}`],
    [`mean ${value}`, num(statistics.mean_rating), known(own.spread) ? `± ${num(own.spread)} within a query` : ""],
    ["pairs tied", percent(own.pair_tie_rate), known(own.tie_rate) ? `best value shared in ${percent(own.tie_rate)} of queries` : `no query has two ${value}s`],
    ["gained by the best", known(own.gain) ? `+${num(own.gain)}` : DASH, "over the mean of the query"],
    ["failed", percent(failed), named(outcomes) || "none"],
    [`${value}s forced`, percent(statistics.forced_share), `${count(statistics.forced)} of ${count(outcomes.ok)}`],
    ["tokens written", count(cost.tokens_out), cost.tokens_out && seconds ? `${rate(cost.tokens_out / seconds)} a second` : ""],
    ["tokens read", count(cost.tokens_in), cost.tokens_in ? `${percent(cost.tokens_cached / cost.tokens_in)} from the prefix cache` : ""],
  );
  if (cost.usd) tiles.push(["US dollars", num(cost.usd, 2), "by the price of the judge's tokens"]);
  if (journal) tiles.push(["time of a judgement", duration(journal.latency_s), known(journal.queued_s) ? `mean, after ${duration(journal.queued_s)} in the queue` : ""]);
  tiles.push(["flags raised", count(Object.values(statistics.flags).reduce((a, b) => a + b, 0)), named(statistics.flags) || "none"]);
  byId("tiles").replaceChildren(
    ...tiles.map(([name, value, note]) => element("div", "tile", element("dt", "", name), element("dd", "", value), element("dd", "note", note))),
  );
}

function showPlots(run) {
  const { statistics, journal, summary } = run;
  const cards = [];
  const curved = summary && summary.curve && summary.curve.length > 1;
  if (curved) cards.push(card("What N bought", curveNote(summary), curve(summary.curve, "Mean best value by N", { height: HEIGHT, sizes: true })));
  if (run.ranks) cards.push(...rankCards(run.ranks));
  if (statistics.bars.length) cards.push(card(`${capital(valueName(summary))}s`, statistics.bar_width ? `in bars of ${num(statistics.bar_width, 6)}` : "how often each was given", histogram(statistics.bars, statistics.bar_width)));
  if (journal && journal.series.some((p) => known(p.mean))) {
    cards.push(card("Ratings over time", `mean and one standard deviation, by ${duration(journal.slot_s)}`, ratingsOverTime(journal.series, journal.slot_s)));
  }
  if (journal && journal.series.length) {
    const legend = journal.failed ? "judgements a second; failed ones in orange" : "judgements a second";
    cards.push(card("Throughput", legend, throughput(journal.series, journal.slot_s)));
  }
  const reasons = statistics.candidates || !journal ? statistics.reasons : journal.failures;
  if (Object.keys(reasons).length) cards.push(card("Failures by reason", "", table(reasons, statistics.candidates || (journal && journal.judged))));
  const outcomes = Object.fromEntries(Object.entries(statistics.outcomes).filter(([, n]) => n));
  if (Object.keys(outcomes).length) cards.push(card("Outcomes", "of candidates", table(outcomes, statistics.candidates)));
  if (Object.keys(statistics.flags).length) cards.push(card("Flags", "of candidates", table(statistics.flags, statistics.candidates)));
  if (journal && Object.keys(journal.verdicts).length) cards.push(card("Verdicts of comparisons", "each order counts for itself", table(journal.verdicts)));
  if (summary && summary.rules) cards.push(card("Choices by deciding rule", "", table(summary.rules, statistics.queries)));
  if (summary && summary.seconds) cards.push(card("Time", "", rowsOf(timeRows(summary))));
  byId("plots").replaceChildren(...cards);
}

function curveNote(summary) {
  const fewest = `ends at ${summary.curve[summary.curve.length - 1][0]}, the fewest rated in a query`;
  const of = known(summary.curve_queries) ? `; ${plural(summary.curve_queries, "query", "queries")}` : "";
  const value = summary.scored_by ? summary.value_name : summary.view;
  return `mean best ${value} of N candidates${of}; ${fewest}`;
}

// The figures on tiles are not repeated here.
function timeRows(summary) {
  const phases = Object.entries(summary.seconds).map(([phase, s]) => [words(phase), duration(s)]);
  return [
    ...phases,
    ["tokens written a second", rate(summary.output_tokens_per_second)],
    ["tie-break comparisons", num(summary.comparisons, 0)],
  ];
}

// What only a job's own report knows: its bad rows, and its config.
function showJob(run) {
  byId("left-out").hidden = !(run.bad_rows && run.bad_rows.length);
  byId("left-out-rows").replaceChildren(...(run.bad_rows || []).map((row) => element("p", "small", row)));
  byId("config").hidden = !run.config;
  byId("config-text").textContent = run.config || "";
}

const FIRST = [/^reward$/, /^rewards\/.*mean$/, /^(objective\/)?scores?$/, /^(objective\/)?kl$/, /^loss(\/.*)?$/, /^completions\/mean_length$/,
  /^judge\/tie_rate$/, /^judge\/raw$/, /^judge\/ok$/, /^judge\/wait_seconds$/, /^entropy$/, /^judge\/group_std$/];

function showCurves(curves) {
  const wanted = byId("curve-filter").value.toLowerCase();
  const place = (name) => {
    const found = FIRST.findIndex((pattern) => pattern.test(name));
    return found < 0 ? FIRST.length : found;
  };
  const names = Object.keys(curves).filter((name) => name.toLowerCase().includes(wanted));
  names.sort((a, b) => place(a) - place(b) || a.localeCompare(b));
  const shown = names.slice(0, wanted ? 36 : 9);
  byId("curve-count").textContent = `${shown.length} of ${Object.keys(curves).length} figures`;
  byId("curves").replaceChildren(
    ...shown.map((name) => {
      const points = curves[name];
      const last = points[points.length - 1];
      const head = element("h3", "", name, element("b", "", exact(last[1])));
      return element("section", "card", head, curve(points, `${name} by step, ${exact(last[1])} at step ${last[0]}`));
    }),
  );
}
