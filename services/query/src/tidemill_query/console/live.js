// A followed answer: every change once, drawn some times a second however many changes come.

import { follow, tooLong } from "./api.js";
import { instant } from "./times.js";

const ROWS_MAX = 20_000;
const DRAW_MS = 200;

// Calls `show` with the rows that are there, `say` with a sentence, `fail` with what ended it.
export function watch(goal, signal, show, say, fail) {
  const held = new Map();
  let drawing = false, changes = 0, upper = null, wait = 0, over = false;
  const draw = () => {
    drawing = false;
    wait = DRAW_MS;
    if (signal.aborted || over) return;
    const found = [...held.values()];
    show(found);
    say(`${found.length} rows, followed: ${changes} changes, definite before ${instant(upper)}`);
  };
  const take = (told) => {
    for (const { _time, _diff, ...row } of told.rows) {
      const key = JSON.stringify(row);
      const diff = (held.get(key)?._diff ?? 0) + _diff;
      if (diff === 0) held.delete(key);
      else held.set(key, { ...row, _diff: diff });
      changes++;
    }
    if (held.size > ROWS_MAX) throw tooLong(`it has more than ${ROWS_MAX} rows`);
    upper = told.upper[0] ?? upper;
    if (!drawing) { drawing = true; setTimeout(() => requestAnimationFrame(draw), wait); }
  };
  follow(goal, take, () => held.clear(), signal).catch((error) => {
    over = true;
    if (!signal.aborted) fail(error);
  });
  return () => upper;
}
