const SOON = 700;
const OFTEN = 2000;
const SELDOM = 10000;
const LIST_EVERY = 10000;
let seen = { judged: -1, state: "", listed: 0, run: null, curves: {} };

function fail(error) {
  const lost = error.status === 401 ? "This page has no valid token: open the address that autoj watch printed." : `autoj watch does not answer: ${error.message}`;
  byId("state").textContent = "not connected";
  byId("state").className = "chip stopped";
  byId("notices").replaceChildren(element("p", "warn", lost));
}

// Keep what the reader looks at where it is, while new figures come.
async function look() {
  if (document.hidden && !EMBEDDED) return OFTEN;
  const given = byId("judge").dataset.chosen ? { judge: byId("judge").value } : {};
  const run = await ask("run", given);
  seen.run = run;
  showTop(run);
  showControls(run);
  showNotices(run);
  showTiles(run, byId("view").value);
  const { journal } = run;
  const judged = journal ? journal.judged : run.statistics.candidates;
  if (judged !== seen.judged || run.state !== seen.state) showPlots(run);
  showJob(run);
  byId("training").hidden = !run.training;
  const unrecorded = Boolean(run.training && !run.recorded);
  for (const part of ["tiles", "plots", "queries"]) byId(part).hidden = unrecorded;
  if (run.training) {
    seen.curves = (await ask("curves")).curves;
    showCurves(seen.curves);
  }
  const idle = !byId("detail").open && list.rows.length <= 20 && !byId("search").value && !byId("list").contains(document.activeElement);
  if (judged !== seen.judged && (!list.rows.length || (idle && Date.now() - seen.listed > LIST_EVERY))) await relist();
  [seen.judged, seen.state] = [judged, run.state];
  if (run.reading) return SOON;
  return run.state === "running" || (journal && Date.now() / 1000 - journal.last < 60) ? OFTEN : SELDOM;
}

async function relist() {
  seen.listed = Date.now();
  await showQueries();
}

async function follow() {
  let pause = OFTEN;
  try {
    pause = await look();
  } catch (error) {
    fail(error);
  }
  if (!EMBEDDED) setTimeout(follow, pause);
}

const guarded = (work) => (...given) => Promise.resolve(work(...given)).catch(fail);

function start() {
  if (!EMBEDDED) token();
  byId("fresh").hidden = EMBEDDED !== null;
  let typing = 0;
  for (const name of ["view", "order", "outcome", "flag"]) byId(name).addEventListener("change", guarded(async () => {
    if (seen.run) showTiles(seen.run, byId("view").value);
    await relist();
  }));
  byId("judge").addEventListener("change", guarded(async () => {
    byId("judge").dataset.chosen = "yes";
    seen.judged = -1;
    list.rows = [];
    await look();
  }));
  byId("search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(guarded(relist), 300);
  });
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("fresh").addEventListener("click", guarded(relist));
  byId("more").addEventListener("click", guarded(() => showQueries(list.next)));
  byId("curve-filter").addEventListener("input", () => showCurves(seen.curves));
  byId("close").addEventListener("click", () => byId("detail").close());
  byId("previous").addEventListener("click", guarded(() => openQuery(opened.at - 1)));
  byId("following").addEventListener("click", guarded(() => openQuery(opened.at + 1)));
  byId("detail").addEventListener("close", () => byId("list").querySelector(`[data-query="${opened.row?.id}"]`)?.focus());
  follow();
}

start();
