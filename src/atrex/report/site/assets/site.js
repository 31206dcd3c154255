// Tables that sort and filter, plots in the colours of the page, a live view that keeps what the reader has chosen.
"use strict";
(() => {
  const root = document.documentElement;
  const stored = (key, value) => {
    try {
      if (value === undefined) return localStorage.getItem(key);
      localStorage.setItem(key, value);
    } catch { /* a page from disk may have no storage: the choice then lasts for the page */ }
    return null;
  };
  const before = stored("atrex-theme");
  if (before === "dark" || before === "light") root.dataset.theme = before;
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

  const make = (tag, fields = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), fields);
    made.append(...children);
    return made;
  };

  // ---- tables

  const value = (cell) => {
    if (!cell) return "";
    if (cell.dataset.sort !== undefined) {
      const number = Number(cell.dataset.sort);
      return Number.isNaN(number) ? cell.dataset.sort : number;
    }
    const text = cell.textContent.trim();
    return text === "-" ? null : text;
  };

  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  };

  const sortBy = (table, column, direction) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [value(row.cells[column]), row]);
    const absent = (v) => v === null || v === "";
    rows.sort(([a], [b]) => absent(a) || absent(b) ? absent(a) - absent(b) : direction * compare(a, b));
    body.append(...rows.map(([, row]) => row));
    [...table.tHead.rows[0].cells].forEach((th, i) => {
      if (i === column) th.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    });
    table.dataset.sorted = `${column} ${direction}`;
  };

  const valuesOf = (th, cell) => {
    const text = cell.textContent.trim();
    return th.dataset.choose === "many" ? text.split(", ") : [text];
  };

  const enhanceTable = (section) => {
    const table = section.querySelector("table");
    if (!table || table.dataset.ready) return;
    table.dataset.ready = "yes";
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((th, column) => {
      const button = make("button", { type: "button" });
      button.append(...th.childNodes);
      th.append(button);
      button.addEventListener("click", () => {
        const first = th.classList.contains("num") ? -1 : 1;
        const now = th.getAttribute("aria-sort");
        sortBy(table, column, now ? (now === "ascending" ? -1 : 1) : first);
      });
    });
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 6) return;
    const title = section.querySelector("h2, h3")?.textContent ?? "the table";
    const field = make("input", { type: "search", placeholder: "Filter rows" });
    field.setAttribute("aria-label", `Filter rows of ${title}`);
    const count = make("span", { className: "count" });
    count.setAttribute("role", "status");
    const menus = heads.flatMap((th, column) => {
      if (!("choose" in th.dataset)) return [];
      const choices = [...new Set(rows.flatMap((row) => valuesOf(th, row.cells[column])))].sort((a, b) => compare(a, b));
      if (choices.length < 2) return [];
      const menu = make("select", {}, make("option", { value: "", textContent: "all" }),
        ...choices.map((text) => make("option", { value: text, textContent: text.length > 60 ? text.slice(0, 59) + "…" : text })));
      menu.dataset.column = column;
      return [menu];
    });
    const apply = () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !(words.every((word) => text.includes(word)) &&
          menus.every((menu) => !menu.value || valuesOf(heads[menu.dataset.column], row.cells[menu.dataset.column]).includes(menu.value)));
        shown += !row.hidden;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    };
    const controls = make("div", { className: "controls" }, field);
    for (const menu of menus) {
      controls.append(make("label", {}, heads[menu.dataset.column].textContent, menu));
      menu.addEventListener("change", apply);
    }
    controls.append(count);
    field.addEventListener("input", apply);
    section.querySelector(".scroll").before(controls);
    apply();
  };

  // ---- plots

  const NARROW = 640;  // pixels

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  const themed = (layout) => {
    const axis = (given = {}) => ({
      gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--soft"), automargin: true, ...given,
    });
    const made = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
      font: { color: colour("--text"), size: 13, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--soft"), font: { color: colour("--text") }, align: "left", namelength: -1 },
      margin: { l: 64, r: 20, t: 16, b: 52 }, ...layout,
    };
    for (const name of Object.keys(layout)) if (/^[xy]axis\d*$/.test(name)) made[name] = axis(layout[name]);
    for (const name of ["xaxis", "yaxis"]) made[name] ??= axis();
    return made;
  };

  const place = (href) => new URL(href, new URL(document.body.dataset.root.replace(/\/?$/, "/"), location.href)).href;

  const draw = async (holder) => {
    const figure = JSON.parse(holder.querySelector("script[type='application/json']").textContent);
    const canvas = holder.querySelector(".canvas");
    canvas.querySelector("noscript")?.remove();
    canvas.style.height = `${holder.dataset.height}px`;
    const layout = themed(figure.layout);
    if (canvas.clientWidth < NARROW) {
      // A legend beside a narrow plot leaves nothing of it; points still say by hovering whose they are.
      layout.legend = { ...layout.legend, orientation: "h", x: 0, y: 1.02, yanchor: "bottom" };
      if (figure.traces.length > 6) layout.showlegend = false;
    }
    await Plotly.react(canvas, figure.traces, layout, {
      responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"],
    });
    if (canvas.dataset.ready) return;
    canvas.dataset.ready = "yes";
    canvas.on("plotly_click", (event) => {
      const { curveNumber, pointNumber } = event.points[0];
      const link = figure.links[curveNumber] ?? {};
      const href = link.links?.[pointNumber] ?? (link.link && link.keys ? link.link + link.keys[pointNumber] : null);
      if (href) location.href = place(href);
    });
  };

  const plots = () => [...document.querySelectorAll("figure.plot")].filter((f) => f.querySelector(".canvas"));
  const drawAll = () => { if (window.Plotly) return Promise.all(plots().map(draw)); };

  // ---- the page

  const openTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target?.tagName !== "DETAILS") return;
    target.open = true;
    target.scrollIntoView();
  };

  const enhance = () => {
    document.querySelectorAll("section.table").forEach(enhanceTable);
    return drawAll();
  };

  const themeButton = () => {
    const button = document.getElementById("theme");
    const label = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `${button.textContent} colours`); };
    button.hidden = false;
    label();
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      stored("atrex-theme", root.dataset.theme);
      label();
      drawAll();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { label(); drawAll(); });
  };

  // What the reader has chosen outlives a redraw: filters, sorting, what is open, where the focus is.
  const refresh = async () => {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
    const main = document.getElementById("main");
    if (!fresh || !main) return;
    const kept = [...main.querySelectorAll("section.table")].map((section) => ({
      id: section.id,
      filter: section.querySelector(".controls input")?.value ?? "",
      menus: [...section.querySelectorAll(".controls select")].map((m) => [m.dataset.column, m.value]),
      sorted: section.querySelector("table")?.dataset.sorted,
      focused: section.querySelector(".controls input") === document.activeElement,
      top: section.querySelector(".scroll")?.scrollTop ?? 0,
    }));
    const open = [...main.querySelectorAll("details[id][open]")].map((d) => d.id);
    plots().forEach((f) => window.Plotly?.purge(f.querySelector(".canvas")));
    main.replaceChildren(...fresh.childNodes);
    open.forEach((id) => { const d = document.getElementById(id); if (d) d.open = true; });
    await enhance();
    for (const was of kept) {
      const section = was.id && document.getElementById(was.id);
      if (!section) continue;
      const table = section.querySelector("table");
      if (was.sorted && table) sortBy(table, ...was.sorted.split(" ").map(Number));
      const field = section.querySelector(".controls input");
      for (const [column, chosen] of was.menus) {
        const menu = section.querySelector(`.controls select[data-column="${column}"]`);
        if (menu) menu.value = chosen;
      }
      if (field) {
        field.value = was.filter;
        field.dispatchEvent(new Event("input"));
        if (was.focused) field.focus();
      }
      const scroll = section.querySelector(".scroll");
      if (scroll) scroll.scrollTop = was.top;
    }
    document.dispatchEvent(new CustomEvent("atrex-refreshed"));
  };

  const listen = () => {
    const { events } = document.body.dataset;
    if (!events) return;
    let source = null, waiting = false;
    const changed = () => {
      if (waiting) return;
      waiting = true;
      setTimeout(async () => { waiting = false; await refresh(); }, 250);
    };
    const open = () => {
      source = new EventSource(events);
      source.addEventListener("changed", changed);
    };
    // A browser has few connections for one server, and a page that nobody sees needs none.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { source?.close(); source = null; } else if (!source) { open(); changed(); }
    });
    if (!document.hidden) open();
  };

  window.atrex = { enhance, refresh };
  document.addEventListener("DOMContentLoaded", async () => {
    themeButton();
    await enhance();
    openTarget();
    addEventListener("hashchange", openTarget);
    listen();
    document.body.dataset.drawn = "yes";
  });
})();
