// Rows as a table; a row whose record can be written opens its proof.

import { cut, h } from "./dom.js";
import { jsonText, recordOf } from "./records.js";
import { lookAtCollections, state } from "./state.js";

export const ROWS_MAX = 500;

const TEXT_MAX = 300; // characters of a value that a cell shows; its proof shows more of them

// The collection that a goal is about, as far as its name alone says it.
export function collectionOf(goal) {
  const name = goal.split("(")[0].trim();
  return state.collections.get(name) ?? state.collections.get(`${name}/${name}`)
    ?? [...state.collections].find(([id]) => id.endsWith(`/${name}`))?.[1];
}

// Documents as they are written; all else as its own text.
const shown = (value) => cut(typeof value === "object" ? jsonText(value) : String(value), TEXT_MAX);

export function table(goal, rows, prove) {
  const collection = collectionOf(goal);
  const names = Object.keys(rows[0] ?? {}).filter((each) => each !== "_diff");
  const body = rows.slice(0, ROWS_MAX).map((row) => {
    const fact = prove && recordOf(goal, row, collection);
    return h("tr", null,
      prove && h("td", null, fact
        ? h("button", {
          type: "button", class: "link", "aria-label": `Proof of ${cut(fact, TEXT_MAX)}`,
          // A record is written by the types of its columns, and those may not be known yet.
          onclick: async () => {
            if (!collectionOf(goal)) await lookAtCollections().catch(() => {});
            prove(recordOf(goal, row, collectionOf(goal)));
          },
        }, "proof") : ""),
      names.map((each) => h("td", null, shown(row[each]))),
      h("td", null, String(row._diff ?? 1)));
  });
  const heads = [...(prove ? ["why"] : []), ...names, "copies"];
  return h("table", null,
    h("thead", null, h("tr", null, heads.map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", null, body));
}
