// One resource: how it does, its frontiers over time, who holds it, its definition and plan.

import { get } from "./api.js";
import { told } from "./bars.js";
import { h, problem, put, say, svg } from "./dom.js";
import { explain } from "./lateness.js";
import { definition } from "./past.js";
import { now } from "./present.js";
import { condition, on, setTimeline, state, timelineOf } from "./state.js";
import { instant, only, span } from "./times.js";

const DETAILS_APART = new Set(["holders", "heldBack", "reads", "inputs"]);

// What is known of the chosen instant: whether it is definite, and how far things were then.
function factsThen(resource, then) {
  if (state.asOf == null) return [];
  const rows = [[`as of ${instant(state.asOf)}`, condition(resource).says]];
  if (then?.definite) rows.push(["became definite", then.definite]);
  if (then?.upper !== undefined) {
    const upper = then.upper;
    rows.push(["upper then", upper == null ? "none: closed" : instant(upper)],
      ["lag then", upper == null ? "none" : span(Math.max(0, state.asOf - upper))],
      ["since then", then.since == null ? "none: closed" : instant(then.since)],
      ["times per second then", then.rate ?? "unknown"]);
  }
  return rows.flatMap(([name, value]) => [h("dt", null, name), h("dd", null, String(value))]);
}

function facts(resource) {
  const rows = [
    ["state", resource.ready ? resource.reason : `not ready: ${resource.reason}`],
    ["says", resource.message || "nothing"],
    ["timeline", timelineOf(resource)],
    ["since", resource.since == null ? "none" : instant(only(resource.since))],
    ["upper", resource.upper == null ? "none" : instant(only(resource.upper))],
    ["lag", span(resource.lag_ms)],
    ["records per second", resource.records_per_s ?? "unknown"],
    ["records behind", resource.records_behind ?? "unknown"],
    ["time left", resource.left_ms == null ? "unknown" : span(resource.left_ms)],
  ];
  for (const [name, value] of Object.entries(resource.details)) {
    if (!DETAILS_APART.has(name)) rows.push([name, JSON.stringify(value)]);
  }
  return rows.flatMap(([name, value]) => [h("dt", null, name), h("dd", null, String(value))]);
}

// The lag over the looks of this page, the newest at the right.
function drawn(key) {
  const kept = state.samples.get(key) ?? [];
  const most = Math.max(1000, ...kept.map((each) => each[1] ?? 0));
  const from = kept[0]?.[0] ?? 0, size = Math.max((kept.at(-1)?.[0] ?? 0) - from, 1000);
  const points = kept.filter((each) => each[1] != null).map(([time, lag]) =>
    `${(((time - from) / size) * 600).toFixed(1)},${(85 - (lag / most) * 78).toFixed(1)}`);
  return { points: points.join(" "), says: `most ${span(most)}, over ${span(size)}` };
}

// The frontiers when the wall clock stood at an instant, as the looks of the half hour say it, and
// when the instant became definite. A timeline of events has no wall clock: only the latter is known.
export function past(looks, at, system) {
  if (at == null || !looks.length) return null;
  const clock = (time) => new Date(time).toISOString().replace("T", " ");
  const reached = looks.findIndex((each) => each.upper == null || each.upper > at);
  const found = {};
  if (reached === 0) found.definite = `before ${clock(looks[0].at_ms)}`;
  if (reached > 0) {
    found.definite = `between ${clock(looks[reached - 1].at_ms)} and ${clock(looks[reached].at_ms)}`;
  }
  const later = looks.findIndex((each) => each.at_ms > at);
  if (!system || later === 0 || (later < 0 && looks.at(-1).at_ms < at - 60_000)) return found;
  const here = looks[later < 0 ? looks.length - 1 : later - 1];
  const before = looks[looks.indexOf(here) - 1];
  Object.assign(found, { upper: here.upper, since: here.since });
  if (before?.upper != null && here.upper != null) {
    found.rate = ((here.upper - before.upper) / (here.at_ms - before.at_ms)).toFixed(2);
  }
  return found;
}

// The wall clock at the first look that found an instant definite; null if it was so at all looks,
// or at none.
function reachedAt(looks, at) {
  const reached = looks.findIndex((each) => each.upper == null || each.upper > at);
  return reached > 0 ? looks[reached].at_ms : null;
}

// Frontiers over the last half hour: the wall clock to the right, times of the timeline upwards.
function overTime(looks) {
  const times = looks.flatMap((each) => [each.since, each.upper]).filter((each) => each != null);
  const least = Math.min(...times), size = Math.max(Math.max(...times) - least, 1);
  const from = looks[0]?.at_ms ?? 0, wide = Math.max((looks.at(-1)?.at_ms ?? 0) - from, 1);
  const points = (name) => looks.filter((each) => each[name] != null).map((each) =>
    `${(((each.at_ms - from) / wide) * 600).toFixed(1)},`
    + `${(85 - ((each[name] - least) / size) * 80).toFixed(1)}`).join(" ");
  const last = looks.at(-1);
  const word = (time) => (time == null ? "closed" : instant(time));
  return {
    since: points("since"), upper: points("upper"),
    high: (time) => (85 - ((time - least) / size) * 80).toFixed(1),
    says: `${looks.length} looks over ${span(wide)}; since ${word(last?.since)}, upper ${word(last?.upper)}`,
  };
}

function frontiers() {
  const lines = { upper: svg("polyline", { points: "" }), since: svg("polyline", { class: "second", points: "" }) };
  const here = svg("line", { class: "at", x1: 0, x2: 600, y1: -9, y2: -9 });
  let high = null, looks = [];
  const says = h("p", { class: "soft" });
  const drawing = svg("svg", {
    class: "spark", viewBox: "0 0 600 90", preserveAspectRatio: "none", role: "img",
    "aria-label": "Frontiers over time: upper above, since below",
  }, lines.upper, lines.since, here);
  // The instant of the slider across both: where upper crosses it, it became definite.
  function move() {
    const at = state.asOf == null || high == null ? -9 : high(state.asOf);
    put(here, "y1", at);
    put(here, "y2", at);
  }
  return {
    move,
    then: (system) => past(looks, state.asOf, system),
    reached: () => reachedAt(looks, state.asOf),
    parts: [drawing, says],
    async look(collection, signal) {
      const address = collection.split("/").map(encodeURIComponent).join("/");
      looks = await get(`/v1/frontiers/${address}`, null, signal);
      const found = overTime(looks);
      for (const name of ["upper", "since"]) put(lines[name], "points", found[name]);
      high = found.high;
      move();
      say(says, `${collection}: ${found.says}`);
    },
  };
}

export function screen(main, parameters, signal, go) {
  const key = parameters.get("key") ?? "";
  const [kind, name] = key.split("/");
  const head = h("h2", null, `${kind} ${name}`);
  const says = h("p", { class: "sentence" });
  const path = h("p", { class: "row", "aria-label": "Path of the least upper" });
  const list = h("dl", null), listThen = h("dl", null);
  const line = svg("polyline", { points: "" });
  const most = h("p", { class: "soft" });
  const spark = svg("svg", {
    class: "spark", viewBox: "0 0 600 90", preserveAspectRatio: "none", role: "img",
    "aria-label": "Lag over time",
  }, line);
  const history = frontiers();
  const holders = h("ul", null), kept = h("ul", null);
  const document_ = h("pre", { tabindex: "0", role: "region", "aria-label": "Definition" });
  const plan = h("pre", { tabindex: "0", role: "region", "aria-label": "Plan" });
  const links = h("p", { class: "row" });
  const failed = h("div", null);
  const mark = h("span", { class: "now" }, "now");
  let latest = "", then = null; // definitions: of now, and of the chosen instant

  const define = definition(kind, name, signal, (at, found, refused) => {
    then = found?.document ?? (refused ? refused.detail ?? refused.title : null);
    say(mark, at == null ? "now" : `as of ${instant(at)}`);
    update();
  });

  // The instant of the definition. One of events has none: that by which it became definite is told.
  function moment(timeline) {
    if (state.asOf == null) return null;
    return timeline === "system" ? state.asOf : history.reached();
  }

  function update() {
    const resource = state.resources.get(key);
    mark.hidden = state.asOf == null;
    define(moment(resource ? timelineOf(resource) : state.timeline));
    say(document_, then ?? latest);
    for (const each of ofNowAlone) each.hidden = !resource;
    if (!resource) {
      const error = state.problem ?? { title: `There is no ${key}.`, detail: "It may be deleted." };
      const known = state.resources.size > 0 || state.problem != null;
      failed.replaceChildren(...(known ? [problem(error)] : []));
      body.hidden = known && then == null; // never a picture of before
      return;
    }
    body.hidden = false;
    setTimeline(timelineOf(resource));
    put(head, "class", told(resource).class);
    const frontiersThen = history.then(timelineOf(resource) === "system");
    listThen.replaceChildren(...factsThen(resource, frontiersThen));
    listThen.hidden = state.asOf == null;
    list.replaceChildren(...facts(resource));
    const lag = drawn(key);
    put(line, "points", lag.points);
    history.move();
    say(most, lag.says);
    const found = explain(resource);
    say(says, found.text);
    const order = found.steps.map((each) => `${each.kind}/${each.name}`);
    if (path.dataset.of !== order.join()) {
      path.dataset.of = order.join();
      path.replaceChildren(...order.flatMap((each, at) => [
        at ? " waits for " : "",
        h("a", { href: `#/resource?key=${encodeURIComponent(each)}` }, each),
      ]));
    }
  }

  async function describe() {
    try {
      const found = await get(`/v1/resources/${encodeURIComponent(kind)}/${encodeURIComponent(name)}`,
        null, signal);
      latest = found.document;
      say(document_, then ?? latest);
      const line = (text) => h("li", null, text);
      holders.replaceChildren(...(found.details.holders ?? ["nobody"]).map(line));
      kept.replaceChildren(...(found.details.heldBack ?? ["nothing"]).map(line));
      const letters = kind === "Source" ? "deadletters" : kind === "View" ? "errors" : null;
      const outputs = [...state.collections].filter(([id, each]) =>
        id === name || (each.kind === "view" && id.startsWith(`${name}/`))).map(([id]) => id);
      links.replaceChildren(
        ...outputs.map((each) =>
          h("a", { href: `#/ask?goal=${encodeURIComponent(each)}` }, `Ask ${each}`)),
        letters && h("a", { href: `#/ask?goal=${encodeURIComponent(`${name}/${letters}`)}` },
          `${found.details[letters] ?? 0} ${letters === "errors" ? "errors" : "dead letters"}`) || "",
        kind === "Table" || kind === "Source"
          ? h("a", { href: `#/insert?key=${encodeURIComponent(key)}` }, "Insert rows") : "",
        h("a", { href: `#/graph?at=${encodeURIComponent(key)}` }, "In the graph"));
      const shown = outputs[0] ?? (state.collections.has(name) ? name : null);
      if (shown) { await history.look(shown, signal); update(); }
      if (kind === "View") {
        plan.textContent = (await get(`/v1/views/${encodeURIComponent(name)}/plan`, null, signal)).text;
      }
      failed.replaceChildren();
    } catch (error) {
      if (error.name !== "AbortError" && !body.hidden) failed.replaceChildren(problem(error));
    }
  }

  const ofNow = (title) => h("h3", null, title, " ", now(signal));
  const left = h("div", null, listThen, ofNow("State"), list, ofNow("Lag over time"), spark, most,
    h("h3", null, "Frontiers over time"), history.parts);
  const more = h("div", null,
    ofNow("Holders"), holders, ofNow("What keeps its history"), kept,
    kind === "View" ? [ofNow("Plan"), plan] : null);
  const ofNowAlone = [says, path, links, left, more]; // of a resource that is deleted since nothing
  const body = h("div", null, says, path, links,
    h("div", { class: "halves" }, left,
      h("div", null, h("h3", null, "Definition ", mark), document_, more)));
  main.replaceChildren(head, failed, body);
  on("resources", update, signal);
  on("instant", update, signal);
  const again = setInterval(describe, 5000);
  signal.addEventListener("abort", () => clearInterval(again));
  update();
  if (name) describe();
  return {};
}
