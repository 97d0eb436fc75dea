// The page of a federation: who is connected, who does which step since when, who is waited for, who was left out.
"use strict";
{
  const { element, duration, size, count, state, meter, drawFacts, drawMessages, follow } = live;
  const at = (id) => document.getElementById(id);
  let latest = null; // {message, at}: durations go on between two messages
  const cards = new Map(); // site -> {text, made}

  const listed = (names) => (names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}` : names[0] ?? "");

  const leadWords = (view, run) => {
    const known = view.state;
    if (view.problem) return view.problem;
    if (!run.live && !known?.over) return `The run has ended: it is ${run.status}. ${run.reason}`;
    if (!known) return "The coordinator has not begun with this run. Is it up? crossward federation status says so.";
    if (known.phase === "failed") return `The run failed: ${known.why || "its log may say why"}`;
    if (known.phase === "finished") return `All ${count(known.rounds, "round is", "rounds are")} done.`;
    const silent = known.silent ? " The coordinator has written nothing for a while: it may be down, or busy with its own part of the round." : "";
    const waiting = known.waiting.length ? `Waiting for ${listed(known.waiting)}` : "No hospital is waited for at the moment";
    if (known.phase === "gathering") return `Before round 1. ${waiting}.${silent}`;
    return `Round ${known.round} of ${known.rounds}. ${waiting}.${silent}`;
  };

  const clockWords = (known, passed) => {
    if (!known || known.over) return "";
    if (known.silent) return `Last news ${duration(known.age + passed)} ago.`;
    if (known.phase !== "gathering" || known.left === null || !known.waiting.length) return "";
    return `The run gives up in ${duration(Math.max(0, known.left - passed))} unless ${known.least === 1 ? "one hospital is" : `${known.least} hospitals are`} here by then.`;
  };

  const doing = (site, passed, run) => {
    if (!run.live && ["working", "lost", "opening"].includes(site.activity)) return `${site.words} when the run ended`;
    const since = site.for === null || site.for === undefined ? "" : duration(site.for + passed);
    const left = site.left === null || site.left === undefined ? "" : duration(Math.max(0, site.left - passed));
    if (site.activity === "working") return `${site.words}, round ${site.round}, for ${since}${left ? ` of at most ${duration(site.for + site.left)}` : ""}`;
    if (site.activity === "lost") return `away for ${since}${left ? `; waited for ${left} more` : ""}`;
    if (site.activity === "opening") return `reads its images for ${since}`;
    if (site.activity === "done") return `done in ${duration(site.seconds)} (${site.step === "train" ? "training" : site.step === "judge" ? "evaluating" : site.step}, round ${site.round})`;
    if (site.activity === "left out") return `left out of round ${site.round || "–"}, ${since} ago`;
    if (site.activity === "refused") return "cannot take part in this run";
    if (site.activity === "ready") return "takes part, waits for work";
    return "has not come";
  };

  const card = (site, passed, run) => {
    const bad = ["lost", "left out", "refused"].includes(site.activity);
    const facts = element("dl", { class: "site-facts" },
      element("dt", {}, "now"), element("dd", {}, doing(site, passed, run)),
      site.why ? element("dt", {}, "why") : null, site.why ? element("dd", {}, site.why) : null,
      element("dt", {}, "received"), element("dd", {}, size(site.bytes ?? 0)),
      element("dt", {}, "left out"), element("dd", {}, site.left_out ? count(site.left_out, "time", "times") : "never"));
    return element("div", { class: `tile site ${bad ? "bad" : ""}`, role: "listitem", "data-site": site.site },
      element("strong", { title: site.site }, site.site),
      element("span", { class: `link ${site.connected ? "up" : "down"}` }, site.connected ? "connected" : "not connected"),
      facts);
  };

  const draw = () => {
    if (!latest) return;
    const { message } = latest;
    const passed = (performance.now() - latest.at) / 1000;
    const view = message.federation;
    if (!view) {
      at("lead").textContent = "This run is not across hospitals.";
      return;
    }
    const lead = leadWords(view, message.run);
    if (at("lead").textContent !== lead) at("lead").textContent = lead; // readers of screens hear changes alone
    at("clock").textContent = message.run.live ? clockWords(view.state, passed) : "";
    const known = new Set(view.sites.map((site) => site.site));
    for (const [name, shown] of cards) if (!known.has(name)) { shown.made.remove(); cards.delete(name); }
    for (const site of view.sites) {
      const made = card(site.activity ? site : { ...site, activity: "not here" }, passed, message.run);
      const shown = cards.get(site.site);
      if (shown && shown.made.outerHTML === made.outerHTML) continue;
      if (shown) shown.made.replaceWith(made);
      else at("sites").append(made);
      cards.set(site.site, { made });
    }
  };

  const drawHead = (message) => {
    const view = message.federation ?? { terms: {}, sites: [] };
    const connected = view.sites.filter((site) => site.connected).length;
    at("kicker").replaceChildren(state(message.run.status), ` ${[view.terms.federation, message.run.method].filter(Boolean).join(" · ")}`);
    meter(at("meter"), message.run);
    drawFacts("facts", [["connected", `${connected} of ${view.sites.length}`],
      ["received", view.state ? size(view.state.bytes) : null],
      ["needed to begin", view.terms.least], ["seconds for a step", view.terms.deadline],
      ["seconds to come back", view.terms.patience], ["seconds to wait before round 1", view.terms.wait]]);
    document.title = `${connected}/${view.sites.length} connected · ${message.run.name} · Crossward`;
  };

  follow(`/events/run/${document.body.dataset.run}`, "run", (message, source) => {
    if (message.gone) {
      source.close();
      latest = null;
      at("lead").textContent = "This run was removed or renamed.";
      return;
    }
    latest = { message, at: performance.now() };
    drawHead(message);
    drawMessages(message.messages);
    draw();
    document.documentElement.dataset.federation = "drawn";
  });
  setInterval(draw, 1000);
}
