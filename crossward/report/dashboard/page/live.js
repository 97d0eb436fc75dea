// What all pages of the dashboard share: elements made of text, numbers in words, the stream, the theme. Text from runs
// reaches the page by textContent alone.
"use strict";

const live = (() => {
  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
    made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return made;
  };

  const number = (value, digits = 1) => (value === null || value === undefined ? "–" : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));

  const duration = (seconds) => {
    if (seconds === null || seconds === undefined) return "";
    if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
    return `${Math.round(seconds / 86400)} days`;
  };

  const size = (bytes) => {
    for (const [unit, step] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (bytes >= step) return `${(bytes / step).toFixed(1)} ${unit}`;
    return `${bytes} bytes`;
  };

  const count = (amount, one, many) => `${amount.toLocaleString("en")} ${amount === 1 ? one : many}`;
  const state = (word) => element("span", { class: `state ${/^[a-z]+$/.test(word) ? word : ""}` }, word);

  const progress = (run) => {
    const rounds = run.planned ? `round ${run.rounds ?? 0} of ${run.planned}` : "";
    if (run.silent) return { rounds, left: `no news for ${duration(run.quiet)}`, warn: true };
    return { rounds, left: run.left === null || run.left === undefined ? "" : run.left ? `about ${duration(run.left)} left` : "ending", warn: false };
  };

  const meter = (bar, run) => {
    const planned = run.planned || 1;
    const done = Math.min(run.rounds ?? 0, planned);
    bar.setAttribute("aria-valuemax", planned);
    bar.setAttribute("aria-valuenow", done);
    bar.firstElementChild.style.transform = `scaleX(${done / planned})`;
  };

  const drawFacts = (place, facts) => document.getElementById(place).replaceChildren(...facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([label, value]) =>
    element("div", {}, element("dt", {}, label), element("dd", {}, String(value)))));

  const drawRows = (id, lines) => {
    const body = document.getElementById(id).tBodies[0];
    const text = JSON.stringify(lines.map((cells) => cells.map((cell) => cell.textContent ?? cell)));
    if (body.dataset.text === text) return;
    body.dataset.text = text;
    body.replaceChildren(...lines.map((cells) => element("tr", {}, ...cells)));
  };

  const cell = (value, kind = "") => element("td", { class: kind || null }, value === null || value === undefined || value === "" ? "–" : String(value));

  const drawMessages = (messages) => drawRows("messages", messages.length
    ? messages.map((message) => [element("td", {}, state(message.kind)), cell(message.when), cell(message.text)])
    : [[element("td", { colspan: 3 }, "Nothing to report: no site was left out, and there are no warnings.")]]);

  // A stream that ends is opened again by the browser. One that is refused has met a dashboard that was started anew.
  const follow = (address, name, take) => {
    const place = document.getElementById("connection");
    const say = (text, lost) => {
      if (place.textContent !== text) place.textContent = text;
      place.classList.toggle("lost", lost);
    };
    const source = new EventSource(address);
    source.addEventListener("open", () => say("live", false));
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) say("Not connected: open the address that crossward dashboard prints", true);
      else say("Connection lost, trying again…", true);
    });
    source.addEventListener(name, (event) => take(JSON.parse(event.data), source));
    addEventListener("pagehide", () => source.close());
  };

  if (!window.crossward) { // pages without charts have no page.js
    document.getElementById("theme").addEventListener("click", () => {
      const root = document.documentElement;
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
    });
  }
  return { element, number, duration, size, count, state, progress, meter, drawFacts, drawRows, cell, drawMessages, follow };
})();
