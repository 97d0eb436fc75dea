// The page of a run: its state, curves that grow, its hospitals, its federation and its log.
"use strict";
{
  const { element, number, duration, size, state, progress, meter, drawFacts, drawRows, cell, drawMessages, follow } = live;
  const at = (id) => document.getElementById(id);
  const curves = { scores: [], losses: [], seconds: [] };

  const drawHead = (run) => {
    const { rounds, left, warn } = progress(run);
    at("kicker").replaceChildren(state(run.status), ` ${[run.method, run.data].filter(Boolean).join(" · ")}`);
    const words = [rounds && `${rounds[0].toUpperCase()}${rounds.slice(1)}`, !warn && left].filter(Boolean).join(", ");
    const silent = warn ? `${left[0].toUpperCase()}${left.slice(1)}, though its status says running: the process may have been killed. crossward resume continues it.` : "";
    const reason = run.reason && run.status !== "running" ? run.reason : "";
    at("lead").textContent = [words && `${words}.`, silent, reason].filter(Boolean).join(" ");
    meter(at("meter"), run);
    const facts = [["seed", run.seed], ["created", run.created.replace("T", " ").replace("Z", "")],
      ["best on validation", run.best === null ? null : `${number(run.best)} ${run.metric}, round ${run.best_round}`],
      ["last news", run.quiet === null ? null : `${duration(run.quiet)} ago`]];
    drawFacts("facts", facts);
    document.title = `${run.live && run.planned ? `${run.rounds ?? 0}/${run.planned} ` : ""}${run.name} · Crossward`;
  };

  const head = (value) => element("th", { scope: "row" }, value);

  const drawSites = (sites) => drawRows("sites", sites.map((site) => [
    head(site.site), cell(site.state), cell(site.asked, "number"), cell(site.loss === null ? null : number(site.loss, 3), "number"),
    cell(site.score === null ? null : number(site.score), "number"), cell(site.failures, "number"),
    cell(site.reason && `round ${site.failed_in}: ${site.reason}`, "text")]));

  const drawFederation = (federation) => {
    at("federation-section").hidden = !federation;
    if (!federation) return;
    const { state: known, sites, problem } = federation;
    const connected = sites.filter((site) => site.connected).length;
    drawFacts("federation-facts", [["problem", problem], ["connected", known ? `${connected} of ${sites.length}` : null],
      ["waiting for", known && known.waiting.join(", ")], ["received", known ? size(known.bytes) : null]]);
  };

  const grow = (message) => {
    for (const [id, rows] of Object.entries(message.curves)) {
      if (!message.again && !rows.length) continue;
      curves[id] = message.again ? rows : [...curves[id], ...rows];
      crossward.update(id, curves[id]);
    }
    document.documentElement.dataset.rounds = message.rounds;
  };

  follow(`/events/run/${document.body.dataset.run}`, "run", (message, source) => {
    if (message.gone) {
      source.close();
      at("lead").textContent = "This run was removed or renamed.";
      return;
    }
    drawHead(message.run);
    at("site-metric").textContent = message.run.metric ? `${message.run.metric.split(",")[0]} on its test set` : "score on its test set";
    at("actions").hidden = at("curves-section").hidden = !message.rounds;
    at("sites-section").hidden = !message.sites.length;
    drawSites(message.sites);
    drawMessages(message.messages);
    drawFederation(message.federation);
    grow(message);
  });
}
