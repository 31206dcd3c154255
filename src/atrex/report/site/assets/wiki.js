// Search over the cards: the terms of every card were weighed when the page was written, nothing is asked of a network.
"use strict";
(() => {
  const MOST = 200; // words that a beginning may stand for
  const rowsOf = (table) => [...table.tBodies[0].rows];

  // Words as atrex.report.cards.words makes them: compounds are looked up joined as well.
  const words = (text) => {
    const lower = text.toLowerCase();
    const found = (lower.match(/[a-z0-9_]+/g) ?? []).filter((w) => w.length > 1);
    const joined = (lower.match(/[a-z0-9]+(?:[-_.][a-z0-9]+)+/g) ?? []).map((w) => w.replace(/[-_.]/g, ""));
    return [...new Set([...found, ...joined])];
  };

  const within = (sorted, beginning) => {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < beginning) low = middle + 1; else high = middle;
    }
    const found = [];
    while (low < sorted.length && found.length < MOST && sorted[low].startsWith(beginning)) found.push(sorted[low++]);
    return found;
  };

  // Card's number -> weight: cards that hold more of the words come first, then those where they weigh more.
  const search = (index, sorted, text) => {
    const total = new Map();
    for (const word of words(text)) {
      const mine = new Map();
      for (const term of within(sorted, word)) {
        const postings = index.terms[term];
        const near = term === word ? 1 : word.length / term.length;
        for (let i = 0; i < postings.length; i += 2) {
          mine.set(postings[i], Math.max(mine.get(postings[i]) ?? 0, near * postings[i + 1]));
        }
      }
      for (const [card, weight] of mine) {
        const [hits, sum] = total.get(card) ?? [0, 0];
        total.set(card, [hits + 1, sum + weight]);
      }
    }
    return total;
  };

  document.addEventListener("DOMContentLoaded", () => {
    const field = document.getElementById("search");
    const index = window.atrexTerms;
    const table = document.querySelector("#wiki-cards table");
    if (!field || !index || !table) return;
    const sorted = Object.keys(index.terms).sort();
    const number = new Map(index.ids.map((id, i) => [id, i]));
    const rows = rowsOf(table);
    const said = document.getElementById("found");
    const apply = () => {
      const text = field.value.trim();
      const found = text ? search(index, sorted, text) : null;
      const weight = (row) => found.get(number.get(row.cells[0].textContent.trim())) ?? null;
      const order = found
        ? rows.map((row, i) => [weight(row), i, row]).sort(([a, i], [b, j]) => (b?.[0] ?? 0) - (a?.[0] ?? 0) || (b?.[1] ?? 0) - (a?.[1] ?? 0) || i - j)
        : rows.map((row, i) => [1, i, row]);
      for (const [w, , row] of order) row.classList.toggle("unfound", w === null);
      table.tBodies[0].append(...order.map(([, , row]) => row));
      table.querySelectorAll("th[aria-sort]").forEach((th) => th.removeAttribute("aria-sort"));
      said.textContent = found ? `${found.size} of ${rows.length} cards, the best first` : "";
      history.replaceState(null, "", text ? `#q=${encodeURIComponent(text)}` : location.pathname + location.search);
    };
    const given = location.hash.match(/^#q=(.*)$/);
    if (given) field.value = decodeURIComponent(given[1]);
    field.addEventListener("input", apply);
    if (given) apply();
  });
})();
