const STATES = { running: "running", finished: "finished", stopped: "stopped", unknown: "on record" };

function card(title, note, ...inside) {
  return element("section", "card", element("h3", "", title), ...inside, note ? element("p", "muted small", note) : null);
}

function table(counts, whole) {
  const body = element("tbody", "");
  for (const [name, n] of Object.entries(counts).slice(0, 8)) {
    const cells = [words(name), num(n, 0), whole ? percent(n / whole) : ""];
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
  if (run.judges.length) facts.push(`judge ${run.judges[run.judge]}`);
  if (run.first) facts.push(`began ${clock(run.first, true)}`);
  if (run.last) facts.push(`last judgement ${duration(Math.max(0, run.now - run.last))} ago`);
  byId("about").textContent = facts.join(" · ");
  showProgress(run);
}

function progressOf(run) {
  if (run.training && run.training.steps) return [run.training.step, run.training.steps, "steps"];
  const done = (run.kinds.rating || 0) + (run.kinds.reading || 0) || run.kinds.comparison || 0;
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
  const speed = unit === "steps" ? done / (run.now - run.first) : run.lately;
  const left = run.state === "running" && done < all && speed > 0 ? ` · about ${duration((all - done) / speed)} left` : "";
  byId("progress-text").textContent = `${num(done, 0)} of ${num(all, 0)} ${unit}${left}`;
}

function showNotices(run) {
  const said = [];
  if (run.reading) said.push(`Reading the journal: ${num(run.judged, 0)} judgements so far.`);
  if (run.trouble) said.push(run.trouble);
  if (run.damaged) said.push(`${plural(run.damaged, "row of the journal is", "rows of the journal are")} not as written, and left out here.`);
  if (!run.judged && !run.reading) said.push("Nothing is judged yet. What comes is shown here as it comes.");
  if (run.training && run.training.without_events) said.push("The trainer's TensorBoard files cannot be read here: pip install tensorboard.");
  const failed = share(run.failed, run.judged);
  if (failed > 0.05) said.push(`${percent(failed)} of the judgements failed: ${Object.keys(run.reasons)[0] || "see outcomes"}.`);
  const shown = byId("notices");
  if (shown.textContent === said.join("")) return;
  shown.replaceChildren(...said.map((text) => element("p", "warn", text)));
}

function showTiles(run, view) {
  const own = run.views[view];
  const seconds = Math.max(1, run.last - run.first);
  const failures = Object.entries(run.outcomes).filter(([name]) => name !== "ok").map(([name, n]) => `${count(n)} ${words(name)}`);
  const flagged = Object.entries(run.flags).map(([name, n]) => `${count(n)} ${words(name)}`);
  const speed = run.state === "running" ? `${rate(run.lately)} a second now, ${rate(run.judged / seconds)} on average` : `${rate(run.judged / seconds)} a second on average`;
  const tiles = [
    ["judgements", count(run.judged), run.judged ? speed : ""],
    ["mean rating", num(run.mean), run.rated ? `± ${num(run.spread)} standard deviation` : ""],
    ["pairs tied", percent(own.pair_tie_rate), own.several ? `best value shared in ${percent(own.tie_rate)} of queries` : "no query has two ratings"],
    ["gained by the best", known(own.gain) ? `+${num(own.gain)}` : DASH, "points over the mean of the query"],
    ["failed", percent(share(run.failed, run.judged)), failures.slice(0, 3).join(", ") || "none"],
    ["ratings forced", percent(share(run.forced, run.rated)), `${count(run.forced)} of ${count(run.rated)}`],
    ["tokens written", count(run.tokens_out), run.tokens_out ? `${rate(run.tokens_out / seconds)} a second` : ""],
    ["tokens read", count(run.tokens_in), run.tokens_in ? `${percent(run.tokens_cached / run.tokens_in)} from the prefix cache` : ""],
  ];
  tiles.push(["time of a judgement", known(run.latency_s) ? `${num(run.latency_s)} s` : DASH, known(run.queued_s) ? `mean, after ${num(run.queued_s)} s in the queue` : ""]);
  tiles.push(["flags raised", count(Object.values(run.flags).reduce((a, b) => a + b, 0)), flagged.slice(0, 3).join(", ") || "none"]);
  byId("tiles").replaceChildren(
    ...tiles.map(([name, value, note]) => element("div", "tile", element("dt", "", name), element("dd", "", value), element("dd", "note", note))),
  );
}

function showPlots(run) {
  const cards = [];
  if (run.ratings.length) cards.push(card("Ratings", run.bar ? `in bars of ${num(run.bar, 6)}` : "how often each was given", histogram(run.ratings, run.bar)));
  if (run.series.some((p) => known(p.mean))) {
    cards.push(card("Ratings over time", `mean and one standard deviation, by ${duration(run.slot_s)}`, ratingsOverTime(run.series, run.slot_s)));
  }
  if (run.series.length) {
    const legend = run.failed ? "judgements a second; failed ones in orange" : "judgements a second";
    cards.push(card("Throughput", legend, throughput(run.series, run.slot_s)));
  }
  if (run.failed) cards.push(card("Failures by reason", "", table(run.reasons, run.judged)));
  if (Object.keys(run.verdicts).length) cards.push(card("Verdicts of comparisons", "each order counts for itself", table(run.verdicts)));
  const end = run.summary;
  if (end && end.curve && end.curve.length > 1) cards.push(card("What N bought", `mean best ${end.view || "rating"} of N candidates`, curve(end.curve, "Mean best value by N", HEIGHT, true)));
  if (end && Object.keys(end.rules).length) cards.push(card("Choices by deciding rule", end.left_out ? `${plural(end.left_out, "row", "rows")} left out` : "", table(end.rules, end.queries)));
  byId("plots").replaceChildren(...cards);
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
      const head = element("h3", "", name, element("b", "", num(last[1], 4)));
      return element("section", "card", head, curve(points, `${name} by step, ${num(last[1], 4)} at step ${last[0]}`));
    }),
  );
}
