// The page's own script: draws the charts, and wires menus, tables, tabs and controls. A block, because the library's
// bundle declares short names at the top level. It loads nothing, stores nothing and sends nothing.
{
  "use strict";

  const TOKENS = JSON.parse(document.getElementById("tokens").textContent);
  const UNTOUCHED = new Set(["data", "datasets", "domain", "sort", "values"]);
  const SAVED_WIDTH = 720;
  const MOST_ROWS = 500; // of a figure's data shown as a table
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map(); // element of a chart -> {view, finalize}
  const specs = new Map(); // id of a chart -> {title, spec, width}

  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const look = () => ("printing" in root.dataset ? "paper" : theme()); // of charts

  // specifications -----------------------------------------------------------------------------------------------------
  const unpacked = (packed) => {
    const rows = Array.from({ length: packed.length }, () => ({}));
    for (const [name, column] of Object.entries(packed.columns)) {
      const value = "distinct" in column ? (i) => column.distinct[column.index[i]] : (i) => column[i];
      rows.forEach((row, i) => { row[name] = value(i); });
    }
    return rows;
  };

  const revived = (part) => {
    if (Array.isArray(part)) return part.map(revived);
    if (!part || typeof part !== "object") return part;
    if (part.$packed) return unpacked(part.$packed);
    return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, revived(value)]));
  };

  const themed = (part, tokens) => {
    if (typeof part === "string") return part.startsWith("token:") ? tokens[part.slice(6)] ?? part : part;
    if (Array.isArray(part)) return part.map((each) => themed(each, tokens));
    if (!part || typeof part !== "object") return part;
    return Object.fromEntries(
      Object.entries(part).map(([key, value]) => [key, UNTOUCHED.has(key) ? value : themed(value, tokens)]),
    );
  };

  const ready = (chart, name, extra) => {
    const tokens = TOKENS[name === "paper" ? "light" : name];
    return { ...themed(chart.spec, tokens), config: themed(TOKENS.config, tokens), ...extra };
  };

  // drawing ------------------------------------------------------------------------------------------------------------
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  const showTip = (handler, event, item, value) => {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    const list = document.createElement("dl");
    for (const [key, text] of Object.entries(typeof value === "object" ? value : { "": value })) {
      if (text === null || text === "" || text === "null") continue;
      const term = document.createElement("dt");
      const entry = document.createElement("dd");
      term.textContent = key;
      entry.textContent = String(text);
      list.append(term, entry);
    }
    tip.replaceChildren(list);
    const { clientX: x, clientY: y } = event;
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - tip.offsetHeight - 8))}px`;
  };

  const options = { ast: true, actions: false, renderer: "svg", defaultStyle: false, tooltip: showTip, logLevel: 1 };

  const draw = async (figure) => {
    const chart = specs.get(figure.dataset.chart);
    const plot = figure.querySelector(".plot");
    if (!chart || plot.dataset.drawn === look() || !plot.offsetWidth) return;
    const name = look();
    plot.dataset.drawn = name;
    drawn.get(figure)?.finalize();
    if (chart.width) plot.style.minWidth = `${chart.width}px`;
    const sheet = document.createElement("div"); // Vega puts a label of its own on what it draws into
    sheet.setAttribute("aria-hidden", "true");
    plot.replaceChildren(sheet);
    const result = await vegaEmbed(sheet, ready(chart, name), options);
    drawn.set(figure, result);
    if (chart.spec.data?.name) refill(figure, chart); // rows may have come while it was being drawn
    for (const control of controls(figure)) apply(control, [figure]);
  };

  const refill = (figure, chart) => {
    const { name, values } = chart.spec.data;
    drawn.get(figure)?.view.data(name, values.map((row) => ({ ...row }))).runAsync();
  };

  const seen = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
    { rootMargin: "300px" },
  );
  const rest = async (figures) => {
    for (const figure of figures) {
      await new Promise((done) => (window.requestIdleCallback ?? setTimeout)(done));
      if (figure.isConnected) await draw(figure);
    }
    root.dataset.charts = "drawn";
  };
  const redraw = () => Promise.all([...document.querySelectorAll("figure[data-chart]")].map(draw));

  // printing: tabs and folds open, and charts are drawn for the width and the colour of paper. Drawing waits for nothing
  // but promises, so charts are there before the browser lays out the sheets.
  const opened = [];
  const toPaper = () => {
    if ("printing" in root.dataset) return;
    opened.push(...document.querySelectorAll("details.fold:not([open])"));
    opened.forEach((fold) => { fold.open = true; });
    root.dataset.printing = "";
    redraw();
  };
  const fromPaper = () => {
    opened.splice(0).forEach((fold) => { fold.open = false; });
    delete root.dataset.printing;
    redraw();
  };
  addEventListener("beforeprint", toPaper);
  addEventListener("afterprint", fromPaper);

  // saving -------------------------------------------------------------------------------------------------------------
  const save = (name, blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  const table = (chart) => {
    const rows = chart.table ?? chart.spec.data.values;
    return { columns: [...new Set(rows.flatMap(Object.keys))], rows };
  };

  const csvCell = (value) => {
    let text = value === null || value === undefined ? "" : String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`; // no formula for a spreadsheet
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  const csv = (chart) => {
    const { columns, rows } = table(chart);
    return [columns, ...rows.map((row) => columns.map((name) => row[name]))]
      .map((line) => line.map(csvCell).join(",") + "\r\n").join("");
  };

  const saveFigure = async (figure, kind) => {
    const id = figure.dataset.chart;
    const chart = specs.get(id);
    if (kind === "csv") return save(`${id}.csv`, new Blob(["\ufeff", csv(chart)], { type: "text/csv" }));
    if (kind === "table") return showData(figure, chart);
    const sheet = document.createElement("div");
    const spec = ready(chart, "light", { width: SAVED_WIDTH, background: "#ffffff" });
    const result = await vegaEmbed(sheet, spec, options);
    for (const control of controls(figure)) setParam(result.view, control);
    await result.view.runAsync();
    if (kind === "svg") save(`${id}.svg`, new Blob([await result.view.toSVG()], { type: "image/svg+xml" }));
    else (await result.view.toCanvas(2)).toBlob((blob) => save(`${id}.png`, blob));
    result.finalize();
  };

  const showData = (figure, chart) => {
    const old = figure.querySelector(".data-here");
    if (old) return old.remove();
    const { columns, rows } = table(chart);
    const place = document.createElement("div");
    place.className = "data-here";
    place.tabIndex = 0;
    place.setAttribute("role", "region");
    place.setAttribute("aria-label", `Data of: ${chart.title}`);
    const made = document.createElement("table");
    const line = (values, cell) => {
      const row = made.insertRow();
      for (const value of values) row.append(Object.assign(document.createElement(cell), { textContent: value ?? "" }));
    };
    line(columns, "th");
    rows.slice(0, MOST_ROWS).forEach((row) => line(columns.map((name) => row[name]), "td"));
    if (rows.length > MOST_ROWS) made.createCaption().textContent = `The first ${MOST_ROWS} of ${rows.length} rows; the CSV has all.`;
    place.append(made);
    figure.append(place);
    place.focus();
  };

  // controls -----------------------------------------------------------------------------------------------------------
  const scope = (element) => element.closest("section, .sheet, main") ?? document;
  const controls = (figure) => [...scope(figure).querySelectorAll("[data-param]")];

  const valueOf = (control) => {
    if (control.matches("fieldset")) return [...control.querySelectorAll("input:checked")].map((box) => box.value);
    return control.type === "range" ? Number(control.value) : control.value;
  };

  const setParam = (view, control) => {
    try {
      view.signal(control.dataset.param, valueOf(control));
      return true;
    } catch {
      return false; // this chart has no such parameter
    }
  };

  const apply = (control, figures) => {
    for (const figure of figures) {
      const view = drawn.get(figure)?.view;
      if (view && setParam(view, control)) view.runAsync();
    }
  };

  const bound = (picker) => {
    const boxes = [...picker.querySelectorAll("input")];
    const most = Number(picker.dataset.most);
    const full = boxes.filter((box) => box.checked).length >= most;
    boxes.forEach((box) => { box.disabled = full && !box.checked; });
    picker.querySelector("output").textContent = full && boxes.length > most ? `${most} at most: drop one to add another` : "";
  };

  const change = (control) => {
    const param = control.dataset.param;
    const value = valueOf(control);
    for (const twin of scope(control).querySelectorAll(`fieldset[data-param="${CSS.escape(param)}"]`)) {
      twin.querySelectorAll("input").forEach((box) => { box.checked = value.includes(box.value); });
      bound(twin);
    }
    if (control.type === "range") control.nextElementSibling.textContent = `${control.value}${control.dataset.unit}`;
    apply(control, scope(control).querySelectorAll("figure[data-chart]"));
  };

  // tables and tabs ----------------------------------------------------------------------------------------------------
  const sortBy = (header, column) => {
    const rising = header.getAttribute("aria-sort") === "descending";
    const body = header.closest("table").tBodies[0];
    const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
    const numeric = [...body.rows].some((row) => key(row) !== "" && !Number.isNaN(Number(key(row))));
    const order = (a, b) => (numeric ? Number(a || -Infinity) - Number(b || -Infinity) : a.localeCompare(b));
    const rows = [...body.rows].sort((a, b) => (rising ? 1 : -1) * order(key(a), key(b)));
    header.parentElement.querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", rising ? "ascending" : "descending");
    body.append(...rows);
  };

  const makeSortable = (made) => {
    [...made.tHead.rows[0].cells].forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      button.addEventListener("click", () => sortBy(header, column));
      header.append(button);
    });
  };

  const select = (tab, focus) => {
    for (const other of tab.parentElement.children) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
    }
    if (focus) tab.focus();
    document.getElementById(tab.getAttribute("aria-controls")).querySelectorAll("figure[data-chart]").forEach(draw);
  };

  const stepTab = (event) => {
    const tabs = [...event.currentTarget.children];
    const at = tabs.indexOf(event.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    select(tabs[(to + tabs.length) % tabs.length], true);
  };

  // mounting: the whole page, or a part that came later (the dashboard) ----------------------------------------------
  const mount = (part, charts) => {
    for (const [id, chart] of Object.entries(charts)) specs.set(id, { ...chart, spec: revived(chart.spec), table: chart.table && revived(chart.table) });
    const figures = [...part.querySelectorAll("figure[data-chart]")];
    figures.forEach((figure) => {
      seen.observe(figure);
      figure.querySelectorAll("[data-save]").forEach((button) => button.addEventListener("click", () => {
        figure.querySelector(".menu").open = false;
        saveFigure(figure, button.dataset.save);
      }));
    });
    part.querySelectorAll("table[data-sortable]").forEach(makeSortable);
    part.querySelectorAll("[role=tablist]").forEach((list) => {
      list.addEventListener("keydown", stepTab);
      [...list.children].forEach((tab) => tab.addEventListener("click", () => select(tab)));
    });
    part.querySelectorAll("[data-param]").forEach((control) => {
      if (control.matches("fieldset")) bound(control);
      control.addEventListener("input", () => change(control));
    });
    part.querySelectorAll("button.print").forEach((button) => button.addEventListener("click", () => print()));
    return rest(figures);
  };
  const unmount = (part) => part.querySelectorAll("figure[data-chart]").forEach((figure) => {
    seen.unobserve(figure);
    drawn.get(figure)?.finalize();
    drawn.delete(figure);
  });

  const spy = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      document.querySelectorAll(".bar a").forEach((link) => {
        if (link.hash === `#${entry.target.id}`) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      });
    }
  }, { rootMargin: "-12% 0px -80% 0px" });
  document.querySelectorAll("main > section").forEach((section) => spy.observe(section));

  document.getElementById("theme")?.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    redraw();
  });
  dark.addEventListener("change", redraw);
  addEventListener("hashchange", () => {
    const sheet = document.querySelector(".sheet:target");
    if (!sheet) return;
    scrollTo(0, 0);
    sheet.focus({ preventScroll: true });
  });
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && document.querySelector(".menu[open]");
    if (!menu) return;
    menu.open = false;
    menu.firstElementChild.focus();
  });
  document.addEventListener("click", (event) => {
    document.querySelectorAll(".menu[open]").forEach((menu) => { if (!menu.contains(event.target)) menu.open = false; });
  });

  // New rows for a chart whose specification names its data; the dashboard's curves grow by it.
  const update = (id, rows) => {
    const chart = specs.get(id);
    chart.spec.data.values = rows;
    document.querySelectorAll(`figure[data-chart="${CSS.escape(id)}"]`).forEach((figure) => refill(figure, chart));
  };

  window.crossward = { mount, unmount, redraw, update };
  mount(document, JSON.parse(document.getElementById("charts").textContent));
}
