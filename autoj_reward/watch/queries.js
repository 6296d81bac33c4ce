const ORDERS = [["newest", "newest first"], ["oldest", "oldest first"], ["spread", "widest spread"], ["highest", "highest best"],
  ["lowest", "lowest worst"], ["tied", "most ties"], ["failures", "most failures"]];
const EMBEDDED_ORDERS = [["oldest", "order of the input"], ...ORDERS.slice(2)];
const list = { rows: [], next: 0, total: 0, asked: 0 };

function showControls(run) {
  options(byId("judge"), run.judges.map((name, n) => [String(n), name]));
  byId("judge-label").hidden = run.judges.length < 2;
  if (!byId("judge").dataset.chosen) byId("judge").value = String(run.judge);
  const views = Object.entries(run.views).filter(([, own]) => own.queries > 0).map(([name]) => [name, shownView(name)]);
  const first = !byId("view").options.length;
  options(byId("view"), views.length ? views : [["rating", shownView("rating")]]);
  if (first && run.views[run.view].queries > 0) byId("view").value = run.view;
  options(byId("order"), EMBEDDED ? EMBEDDED_ORDERS : ORDERS);
  options(byId("outcome"), [["", "any"], ...Object.keys(run.statistics.outcomes).map((name) => [name, words(name)])]);
  options(byId("flag"), [["", "any"], ...run.all_flags.map((name) => [name, words(name)])]);
}

function filters() {
  const given = {};
  for (const name of ["judge", "view", "order", "outcome", "flag", "search"]) {
    if (byId(name).value) given[name] = byId(name).value;
  }
  return given;
}

// The list from its start, or from where it ends.
async function showQueries(from = 0) {
  const turn = ++list.asked;
  byId("list").setAttribute("aria-busy", "true");
  try {
    const told = await ask("queries", { ...filters(), start: from });
    if (turn !== list.asked) return;
    list.rows = from ? [...list.rows, ...told.rows] : told.rows;
    [list.next, list.total] = [told.next, told.total];
    drawList();
  } finally {
    if (turn === list.asked) byId("list").removeAttribute("aria-busy");
  }
}

function drawList() {
  const focused = document.activeElement && document.activeElement.dataset.query;
  const searching = byId("search").value !== "";
  const values = list.rows.flatMap((row) => row.values);
  const scale = values.every((v) => v >= 0 && v <= 10);
  const shares = scale && values.every((v) => v <= 1) && values.some((v) => v < 1);
  const [low, high] = shares ? [0, 1] : scale ? [1, 10] : [Math.min(...values), Math.max(...values)];
  byId("list").replaceChildren(...list.rows.map((row, n) => line(row, n, low, high)));
  if (focused) byId("list").querySelector(`[data-query="${focused}"]`)?.focus();
  const looked = list.next === null ? list.total : list.next;
  byId("count").textContent = searching
    ? `${plural(list.rows.length, "match", "matches")} in ${num(looked, 0)} of ${num(list.total, 0)} queries`
    : `${num(list.rows.length, 0)} of ${plural(list.total, "query", "queries")}`;
  byId("more").hidden = list.next === null || looked >= list.total;
  byId("more").textContent = searching ? "Search on" : "Show more";
  if (!list.rows.length) byId("list").append(element("p", "muted", searching || list.total === 0 ? "No query to show." : ""));
}

function line(row, n, low, high) {
  const facts = [];
  if (known(row.best)) facts.push(row.rated > 1 ? `${num(row.worst)} to ${num(row.best)}` : num(row.best));
  const notes = [plural(row.candidates || row.judged, row.candidates ? "candidate" : "judgement", row.candidates ? "candidates" : "judgements")];
  if (row.rated > 1 && row.tied) notes.push(`${percent(row.tied / row.pairs)} tied`);
  if (row.choice) notes.push(`chosen by ${words(row.choice.rule)}`);
  const made = button("", "query", guarded(() => openQuery(n)));
  made.dataset.query = row.id;
  made.append(
    element("span", "asked", row.text || "(its text is no longer in the journal)"),
    row.values.length ? strip(row.values, low, high) : element("span", "", ""),
    element("span", "value", ...facts),
    element("span", "muted small notes", notes.join(" · "), row.failed ? element("span", "bad", `${num(row.failed, 0)} failed`) : null),
  );
  return made;
}
