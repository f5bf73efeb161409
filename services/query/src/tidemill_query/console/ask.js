// A question as of the instant of the slider; a row opens its proof.

import { collectionOf, ROWS_MAX, table as drawn } from "./answer.js";
import { post, rows } from "./api.js";
import { cut, h, problem, say } from "./dom.js";
import { watch } from "./live.js";
import { address, on, setTimeline, state } from "./state.js";
import { instant } from "./times.js";

const SLOW_MS = 120;
const STATED_MAX = 16_000; // characters of a question that an address states
const FACT_MAX = 2_000; // characters of a fact in a tree
const REASONS_MAX = 100_000; // and of the reasons as text

function tree(node, top) {
  const label = [h("code", null, cut(node.fact, FACT_MAX))];
  if (node.rule != null && node.text) label.push(h("span", { class: "soft" }, `  by ${node.text}`));
  if (node.kind === "input") label.push(h("span", { class: "soft" }, "  input"));
  if (!node.children?.length) return h("div", { class: "leaf" }, label);
  return h("details", { open: top },
    h("summary", null, label), node.children.map((each) => tree(each, false)));
}

export function screen(main, parameters, signal, go) {
  const goal = h("input", {
    id: "goal", class: "wide", type: "text", autocomplete: "off", spellcheck: "false",
    list: "known", value: parameters.get("goal") ?? "", "aria-label": "Goal or collection",
  });
  const known = h("datalist", { id: "known" });
  const live = h("input", { id: "live", type: "checkbox" });
  const head = h("p", { class: "soft", "aria-live": "polite" });
  const table = h("div", {
    class: "scroll", tabindex: "0", role: "region", "aria-label": "Answer",
  });
  const record = h("input", {
    id: "record", class: "wide", type: "text", autocomplete: "off", spellcheck: "false",
    value: parameters.get("record") ?? "", "aria-label": "Record",
  });
  const reasons = h("div", { class: "tree", "aria-live": "polite" });
  const text = h("pre", { tabindex: "0", role: "region", "aria-label": "Reasons as text", hidden: true });
  let asking = new AbortController();
  let following = null;
  let reading = new AbortController();
  let shown = null;
  let waiting = null;

  const prove = (fact) => { record.value = fact; why("why"); };
  const fill = (asked, found) => table.replaceChildren(drawn(asked, found, prove));

  // The question and its proof, so that a page that is loaded again shows them again.
  function stated() {
    const told = { goal: goal.value.trim(), record: record.value.trim() };
    address("ask", Object.entries(told).filter(([, text]) => text && text.length <= STATED_MAX));
  }

  async function ask() {
    following?.abort();
    asking.abort();
    asking = new AbortController();
    const mine = asking;
    const asked = goal.value.trim();
    if (!asked) { table.replaceChildren(); say(head, "Name a collection, or a goal such as late(p, d)."); return; }
    stated();
    const collection = collectionOf(asked);
    if (collection) setTimeline(collection.timeline);
    if (live.checked && state.asOf == null) { followed(asked); return; }
    head.setAttribute("aria-live", "polite");
    try {
      const parameters = { as_of: state.asOf, wait_s: state.asOf == null ? null : 5 };
      const found = asked.includes("(")
        ? await rows("/v1/ask", { goal: asked, ...parameters }, ROWS_MAX, mine.signal)
        : await rows(`/v1/collections/${asked.split("/").map(encodeURIComponent).join("/")}`,
          parameters, ROWS_MAX, mine.signal);
      if (mine.signal.aborted) return;
      shown = found.at;
      fill(asked, found.rows);
      const count = found.more ? `the first ${ROWS_MAX} rows` : `${found.rows.length} rows`;
      say(head, `${count} as of ${instant(found.at)}; since ${instant(Number(found.since))}, `
        + `upper ${found.upper ? instant(Number(found.upper)) : "none: closed"}`
        + (found.note ? `. ${found.note}` : ""));
    } catch (error) {
      if (error.name === "AbortError" || mine.signal.aborted) return;
      table.replaceChildren(problem(error)); // never the answer of before
      say(head, "");
    }
  }

  function followed(asked) {
    following = new AbortController();
    head.setAttribute("aria-live", "off"); // it changes all the time now
    const mine = following;
    watch(asked, mine.signal, (found) => fill(asked, found), (text) => say(head, text),
      (error) => { table.replaceChildren(problem(error)); say(head, ""); });
  }

  async function why(kind) {
    reading.abort();
    reading = new AbortController();
    const mine = reading;
    const fact = record.value.trim();
    if (!fact) return;
    stated();
    try {
      const asOf = state.asOf ?? (following ? null : shown);
      // In the body: a record may be longer than an address.
      const body = JSON.stringify({ record: fact, as_of: asOf });
      const found = await post(`/v1/${kind}`, body, "application/json", {}, mine.signal);
      if (!found.tree && kind === "why") { await why("why-not"); return; } // it is absent
      const head = kind === "why" ? "Proof" : "Why it is absent";
      reasons.replaceChildren(h("h3", null, head), found.tree ? tree(found.tree, true) : "");
      text.textContent = cut(found.text, REASONS_MAX);
      text.hidden = false;
    } catch (error) {
      if (error.name === "AbortError") return;
      text.hidden = true;
      reasons.replaceChildren(problem(error));
    }
  }

  function moved() {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      ask();
      if (record.value.trim() && reasons.childElementCount) why("why");
    }, SLOW_MS);
  }

  const submit = (take) => (event) => { event.preventDefault(); take(); };
  main.replaceChildren(
    h("h2", null, "Ask"),
    h("form", { class: "row", onsubmit: submit(ask) },
      h("label", { for: "goal" }, "Goal"), goal, known,
      h("button", { class: "first" }, "Ask"),
      live, h("label", { for: "live" }, "follow")),
    head,
    h("div", { class: "halves" },
      h("div", null, table),
      h("div", null,
        h("form", { class: "row", onsubmit: submit(() => why("why")) },
          h("label", { for: "record" }, "Record"), record,
          h("button", { class: "first" }, "Why"),
          h("button", { type: "button", onclick: () => why("why-not") }, "Why not")),
        reasons, text)));
  live.addEventListener("change", ask);
  on("instant", moved, signal);
  on("resources", () => {
    const collection = collectionOf(goal.value.trim());
    if (collection) setTimeline(collection.timeline);
    const names = [...state.collections.keys()].slice(0, 1000);
    if (known.childElementCount !== names.length) {
      known.replaceChildren(...names.map((value) => h("option", { value })));
    }
  }, signal);
  signal.addEventListener("abort", () => { asking.abort(); following?.abort(); reading.abort(); });
  ask();
  if (record.value) why("why");
  return { search: goal };
}
