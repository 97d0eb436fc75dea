// The list of runs: tiles of those under way, the table of all, and what can be done with those that are picked.
"use strict";
{
  const { element, number, duration, count, state, progress, meter, follow } = live;
  const MOST_ROWS = 1000;
  const runs = new Map();
  const picked = new Set();
  const tiles = new Map();
  const rows = new Map(); // id -> {line, row}
  let studies = [];
  let sorted = { key: "created", rising: false };
  const at = (id) => document.getElementById(id);
  const body = at("runs").tBodies[0];

  // tiles --------------------------------------------------------------------------------------------------------------
  const spark = (points) => {
    if (!points || points.length < 2) return null;
    const values = points.map(([, value]) => value);
    const low = Math.min(...values);
    const span = Math.max(...values) - low || 1;
    const first = points[0][0];
    const width = points[points.length - 1][0] - first || 1;
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 100 30");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    line.setAttribute("points", points.map(([round, value]) => `${(100 * (round - first)) / width},${28 - (26 * (value - low)) / span}`).join(" "));
    svg.append(line);
    return svg;
  };

  const tile = (run) => {
    const { rounds, left, warn } = progress(run);
    const bar = element("div", { class: "meter", role: "progressbar", "aria-label": "Rounds done", "aria-valuemin": 0 }, element("span"));
    meter(bar, run);
    return element("a", { class: "tile", href: `/run/${run.id}`, "data-run": run.id },
      element("strong", { title: run.name }, run.name),
      element("span", { class: "quiet" }, [run.method, run.data].filter(Boolean).join(" · ") || run.reason),
      spark(run.curve), bar,
      element("span", { class: "ends" }, element("span", {}, run.status === "running" ? rounds : run.status), element("span", { class: warn ? "warn" : "" }, left)));
  };

  const drawTiles = () => {
    const shown = [...runs.values()].filter((run) => run.live);
    at("running-section").hidden = !shown.length;
    shown.sort((a, b) => (a.name < b.name ? -1 : 1));
    const wanted = new Set(shown.map((run) => run.id));
    for (const [id, known] of tiles) if (!wanted.has(id)) { known.made.remove(); tiles.delete(id); }
    shown.forEach((run, place) => {
      const known = tiles.get(run.id);
      let made = known?.made;
      if (known?.run !== run) {
        made = tile(run);
        const focused = known && document.activeElement === known.made;
        if (known) known.made.replaceWith(made);
        if (focused) made.focus();
        tiles.set(run.id, { run, made });
      }
      if (at("running").children[place] !== made) at("running").insertBefore(made, at("running").children[place] ?? null);
    });
  };

  // the table ----------------------------------------------------------------------------------------------------------
  const best = (run) => {
    if (run.best === null) return "–";
    return element("span", { title: `${run.metric}, round ${run.best_round}` }, number(run.best), element("span", { class: "dev" }, ` ${run.metric.split(",")[0]}`));
  };

  const makeRow = (run) => {
    const box = element("input", { type: "checkbox", "aria-label": `Pick ${run.name}` });
    box.checked = picked.has(run.id);
    box.addEventListener("change", () => {
      if (box.checked) picked.add(run.id);
      else picked.delete(run.id);
      drawPicked();
    });
    const why = run.reason && !run.live ? element("span", { class: "why" }, run.reason.length > 160 ? `${run.reason.slice(0, 160)}…` : run.reason) : null;
    return element("tr", { "data-run": run.id },
      element("td", {}, box), element("td", {}, state(run.status)),
      element("th", { scope: "row" }, element("a", { href: `/run/${run.id}` }, run.name), why),
      element("td", {}, run.method || "–"), element("td", { class: "wide" }, run.data || "–"),
      element("td", { class: "number" }, run.rounds === null ? "–" : `${run.rounds}/${run.planned ?? "?"}`),
      element("td", { class: "number" }, best(run)),
      element("td", { class: "wide" }, run.created.replace("T", " ").replace("Z", "") || "–"));
  };

  const chosen = () => {
    const words = at("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const status = at("status").value;
    const study = at("study").value;
    const text = (run) => `${run.name} ${run.method} ${run.data} ${run.status} ${run.reason}`.toLowerCase();
    return [...runs.values()].filter((run) => (!status || run.status === status) && (!study || run.study === study) && words.every((word) => text(run).includes(word)));
  };

  const order = (a, b) => {
    const [x, y] = [a[sorted.key], b[sorted.key]];
    const compared = typeof x === "number" || typeof y === "number" ? (x ?? -Infinity) - (y ?? -Infinity) : String(x ?? "").localeCompare(String(y ?? ""), "en", { numeric: true });
    return (sorted.rising ? 1 : -1) * (compared || a.name.localeCompare(b.name));
  };

  const drawTable = () => {
    const found = chosen().sort(order);
    const shown = found.slice(0, MOST_ROWS);
    const focused = document.activeElement?.closest?.("tr[data-run]")?.dataset.run;
    const kind = document.activeElement?.tagName;
    const made = shown.map((run) => {
      const known = rows.get(run.id);
      if (known?.run === run) return known.row;
      const row = makeRow(run);
      rows.set(run.id, { run, row });
      return row;
    });
    if (made.length !== body.rows.length || made.some((row, place) => body.rows[place] !== row)) {
      body.replaceChildren(...made);
      if (focused) body.querySelector(`tr[data-run="${focused}"] ${kind}`)?.focus();
    }
    at("more").hidden = found.length <= MOST_ROWS && found.length > 0;
    at("more").textContent = found.length ? `The first ${MOST_ROWS.toLocaleString("en")} of ${count(found.length, "run", "runs")} are shown: search for others.` : runs.size ? "No run is like that." : "There is no run here yet. Start one by crossward run, and it appears by itself.";
  };

  const drawPicked = () => {
    for (const id of [...picked]) if (!runs.has(id)) picked.delete(id);
    const query = [...picked].map((id) => `run=${id}`).join("&");
    at("picked").textContent = picked.size ? `${picked.size} picked` : "";
    at("compare").hidden = !picked.size;
    at("compare").textContent = picked.size === 1 ? "Report of this run" : "Report of these runs";
    at("compare").href = `/report?${query}`;
    at("differences").hidden = picked.size !== 2;
    at("differences").href = `/differences?${query}`;
    const study = at("study").value;
    at("study-report").hidden = !study;
    at("study-report").href = `/study/${study}/report`;
  };

  const options = (select, values) => {
    const now = select.value;
    const wanted = JSON.stringify(values);
    if (select.dataset.values === wanted) return;
    select.dataset.values = wanted;
    select.replaceChildren(element("option", { value: "" }, "all"), ...values.map(([value, text]) => element("option", { value }, text)));
    select.value = values.some(([value]) => value === now) ? now : "";
  };

  const drawHead = (notes) => {
    const all = [...runs.values()];
    const by = (status) => all.filter((run) => run.status === status).length;
    const parts = [count(all.length, "run", "runs")];
    for (const [status, words] of [["running", "running"], ["waiting", "waiting for sites"], ["failed", "failed"]]) if (by(status)) parts.push(`${by(status)} ${words}`);
    at("summary").textContent = all.length ? parts.join(", ") : "No runs yet";
    document.title = `${by("running") ? `(${by("running")}) ` : ""}Runs · Crossward`;
    at("notes").replaceChildren(...notes.map((note) => element("p", { class: "note", role: "note" }, note)));
    options(at("status"), [...new Set(all.map((run) => run.status))].sort().map((status) => [status, status]));
    const members = (id) => all.filter((run) => run.study === id);
    options(at("study"), studies.map((study) => [study.id, `${study.name} (${members(study.id).filter((run) => run.status === "finished").length} of ${members(study.id).length} finished)`]));
    at("study-choice").hidden = !studies.length;
  };

  // headers sort -------------------------------------------------------------------------------------------------------
  const headers = [...document.querySelectorAll("#runs thead [data-key]")];
  const mark = () => headers.forEach((header) => {
    if (header.dataset.key === sorted.key) header.setAttribute("aria-sort", sorted.rising ? "ascending" : "descending");
    else header.removeAttribute("aria-sort");
  });
  headers.forEach((header) => {
    const button = element("button", { type: "button" }, ...header.childNodes);
    button.addEventListener("click", () => {
      const again = sorted.key === header.dataset.key;
      sorted = { key: header.dataset.key, rising: again ? !sorted.rising : !["best", "created", "rounds"].includes(header.dataset.key) };
      mark();
      drawTable();
    });
    header.append(button);
  });
  mark();
  for (const id of ["filter", "status", "study"]) at(id).addEventListener("input", () => { drawTable(); drawPicked(); });

  follow("/events/runs", "runs", (message) => {
    if (!("gone" in message)) runs.clear();
    for (const id of message.gone ?? []) { runs.delete(id); rows.delete(id); }
    for (const run of message.runs) runs.set(run.id, run);
    studies = message.studies;
    drawHead(message.notes);
    drawTiles();
    drawTable();
    drawPicked();
    document.documentElement.dataset.listed = "yes";
  });
}
