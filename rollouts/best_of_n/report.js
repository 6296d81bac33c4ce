"use strict";
const box = document.getElementById("find");
const found = document.getElementById("found");
const queries = [...document.querySelectorAll("article.query")];
let texts = null;
box.addEventListener("input", () => {
  texts ??= queries.map((query) => query.textContent.toLowerCase());
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  queries.forEach((query, k) => {
    query.hidden = !words.every((word) => texts[k].includes(word));
    shown += !query.hidden;
  });
  found.textContent = words.length ? `${shown} of ${queries.length} shown here` : "";
});
