// The answers of a page that holds its data: those of `autoj watch`, from the queries in the file.

const BY = {
  newest: (row) => -row.id, oldest: (row) => row.id, spread: (row) => row.worst - row.best, highest: (row) => -row.best,
  lowest: (row) => row.worst, tied: (row) => -row.tied / row.pairs, failures: (row) => -row.failed,
};

function embeddedAnswer(name, question) {
  if (name === "run") return EMBEDDED.run;
  if (name === "queries") return embeddedQueries(question);
  const query = EMBEDDED.queries.find((own) => own.id === Number(question.id));
  if (name === "query") return { ...query, candidates: ranked(query.candidates, question.view) };
  const names = [question.one, question.two].filter(Boolean);
  return {
    candidates: names.map((own) => query.details[Number(own)]),
    comparisons: query.comparisons.filter((own) => names.includes(own.one) && names.includes(own.two)),
  };
}

// Best first, equal ones by their expected rating, those without a number last.
function ranked(candidates, view) {
  const order = (c, name) => (known(c.values[name]) ? -c.values[name] : Infinity);
  const less = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return [...candidates].sort((a, b) => less(order(a, view), order(b, view)) || less(order(a, "expected"), order(b, "expected")));
}

function embeddedQueries(question) {
  const { view = "rating", order = "oldest", outcome, flag, search } = question;
  const wanted = (search || "").toLowerCase();
  const rows = EMBEDDED.queries
    .filter((query) => !outcome || query.candidates.some((c) => c.outcome === outcome))
    .filter((query) => !flag || query.candidates.some((c) => c.flags.includes(flag)));
  const found = rows.filter((query) => !wanted || heldText(query).includes(wanted)).map((query) => embeddedRow(query, view));
  const place = (row) => (Number.isFinite(BY[order](row)) ? BY[order](row) : Infinity);
  found.sort((a, b) => (place(a) === place(b) ? a.id - b.id : place(a) - place(b)));
  return { total: rows.length, next: null, rows: found };
}

function embeddedRow(query, view) {
  const values = query.candidates.map((c) => c.values[view]).filter(known).sort((a, b) => a - b);
  const failed = query.candidates.filter((c) => !["ok", "abandoned", "no_answer"].includes(c.outcome)).length;
  return { ...query, ...query.standings[view], text: query.excerpt, judged: query.total, candidates: query.total, failed, values };
}

// All that a search looks through, made once.
function heldText(query) {
  const said = (own) => [own.response, ...own.judgements.flatMap((j) => [j.critique, j.reason, j.thinking])];
  query.searched ??= [query.text, ...Object.values(query.context), ...query.details.flatMap(said)].join("\n").toLowerCase();
  return query.searched;
}
