// Rows into tables and sources; documents that are checked and applied.

import { table } from "./answer.js";
import { get, once, post } from "./api.js";
import { h, problem, say } from "./dom.js";
import { watch } from "./live.js";
import { nowSays } from "./present.js";
import { keyOf, on, refresh, state } from "./state.js";
import { instant } from "./times.js";

const TYPES = { csv: "text/csv", text: "text/csv" };

export function insert(main, parameters, signal) {
  const where = h("select", { id: "where" });
  const rows = h("textarea", {
    id: "rows", spellcheck: "false",
    placeholder: '{"plane": "N2", "delay": 45}\n{"plane": "N3", "delay": 5}',
  });
  const said = h("div", { "aria-live": "polite" });
  const goal = h("input", {
    id: "watched", class: "wide", type: "text", autocomplete: "off", spellcheck: "false",
    placeholder: "late(p, d)",
  });
  const head = h("p", { class: "soft" });
  const answer = h("div", {
    class: "scroll", tabindex: "0", role: "region", "aria-label": "Watched answer",
  });
  let token = once();
  let watching = null;

  function look(event) {
    event.preventDefault();
    watching?.abort();
    watching = new AbortController();
    const watched = goal.value.trim();
    if (!watched) { answer.replaceChildren(); say(head, ""); return; }
    watch(watched, watching.signal, (found) => answer.replaceChildren(table(watched, found)),
      (text) => say(head, text), (error) => { answer.replaceChildren(problem(error)); say(head, ""); });
  }

  function fill() {
    const keys = [...state.resources.values()]
      .filter((each) => each.kind === "Table" || each.kind === "Source").map(keyOf).sort();
    if (where.dataset.of === keys.join()) return;
    where.dataset.of = keys.join();
    const chosen = where.value || parameters.get("key");
    where.replaceChildren(...keys.map((key) =>
      h("option", { value: key, selected: key === chosen }, key)));
  }

  async function send(event) {
    event.preventDefault();
    const [kind, name] = where.value.split("/");
    const base = kind === "Table" ? "/v1/tables" : "/v1/sources";
    try {
      const of = await get(`/v1/resources/${kind}/${encodeURIComponent(name)}`);
      const format = /^ {2}format:\n {4}(\w+):/m.exec(of.document)?.[1];
      const type = kind === "Table" ? "application/x-ndjson" : TYPES[format] ?? "application/x-ndjson";
      // The same token until an answer has come: rows whose answer was lost are there once.
      const found = await post(`${base}/${encodeURIComponent(name)}/rows`, rows.value, type,
        { "Idempotency-Key": token });
      token = once();
      said.replaceChildren(h("div", { class: "done" }, kind === "Table"
        ? `${found.rows} rows are in ${name} at ${instant(found.time)}.`
        : `${found.accepted} rows are in the log of ${name}.`));
      refresh();
    } catch (error) {
      if (error.status >= 400 && error.status < 500) token = once();
      said.replaceChildren(problem(error));
    }
  }

  rows.addEventListener("input", () => { token = once(); });
  main.replaceChildren(h("h2", null, "Insert"),
    nowSays(signal, "Rows are inserted at the present instant, and the watched answer follows it."),
    h("p", { class: "soft" }, "One row a line. A table takes JSON objects; _diff of -1 removes a row. "
      + "A source takes rows in its format."),
    h("div", { class: "halves" },
      h("div", null,
        h("form", { onsubmit: send },
          h("div", { class: "row" }, h("label", { for: "where" }, "Into"), where),
          h("label", { for: "rows" }, "Rows"), rows,
          h("div", { class: "row" }, h("button", { class: "first" }, "Insert"))),
        said),
      h("div", null,
        h("form", { class: "row", onsubmit: look },
          h("label", { for: "watched" }, "Goal"), goal, h("button", { class: "first" }, "Watch")),
        head, answer)));
  signal.addEventListener("abort", () => watching?.abort());
  on("resources", fill, signal);
  fill();
  return { search: rows };
}

// The place in the text of a mistake: of the documents, or of a program within one.
export function placeOf(line, text) {
  const own = /body:(\d+):(\d+)/.exec(line);
  if (own) return [Number(own[1]), Number(own[2])];
  const inner = /View\/([^:\s]+):(\d+):(\d+)/.exec(line);
  if (!inner) return null;
  const lines = text.split("\n");
  let view = null;
  for (let at = 0; at < lines.length; at++) {
    const named = /\bname:\s*"?([\w.-]+)/.exec(lines[at]);
    if (named) view = named[1];
    const begun = /^(.*\bprogram:\s*)([|>][-+]?\s*$|["']?)/.exec(lines[at]);
    if (view !== inner[1] || !begun) continue;
    if (/^[|>]/.test(begun[2])) {
      const indent = /^\s*/.exec(lines[at + 1] ?? "")[0].length;
      return [at + 1 + Number(inner[2]), indent + Number(inner[3])];
    }
    return [at + Number(inner[2]), begun[0].length + Number(inner[3])];
  }
  return null;
}

export function apply(main, parameters, signal) {
  const text = h("textarea", { id: "documents", class: "tall", spellcheck: "false" });
  const said = h("div", { "aria-live": "polite" });

  function show([line, column]) {
    const lines = text.value.split("\n");
    const at = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0) + column - 1;
    text.focus();
    text.setSelectionRange(at, Math.min(at + 1, text.value.length));
    text.scrollTop = (line - 4) * 18;
  }

  function mistakes(error) {
    const found = (error.detail ?? "").split("\n").map((line) => [line, placeOf(line, text.value)]);
    const placed = found.filter(([, place]) => place);
    return h("div", null, problem(error),
      placed.length ? h("ol", { "aria-label": "Places of mistakes" }, placed.map(([line, place]) =>
        h("li", null, h("button", { type: "button", class: "link", onclick: () => show(place) },
          `line ${place[0]}, column ${place[1]}`), ` ${line}`))) : null);
  }

  async function send(base, verb) {
    try {
      const found = await post(base, text.value, "application/yaml");
      said.replaceChildren(h("div", { class: "done" },
        h("p", null, verb),
        h("ul", null, found.map((each) => h("li", null,
          h("a", { href: `#/resource?key=${encodeURIComponent(keyOf(each))}` }, keyOf(each)),
          ` ${each.outcome}`)))));
      refresh();
    } catch (error) {
      said.replaceChildren(mistakes(error));
    }
  }

  main.replaceChildren(h("h2", null, "Apply"),
    nowSays(signal, "Documents are checked against what there is, and applied from now on."),
    h("form", { onsubmit: (event) => { event.preventDefault(); send("/v1/apply", "Applied:"); } },
      h("label", { for: "documents" }, "Documents"), text,
      h("div", { class: "row" },
        h("button", { type: "button", onclick: () => send("/v1/check", "Applying this would make:") },
          "Check"),
        h("button", { class: "first" }, "Apply"))),
    said);
  return { search: text };
}
