// A followed answer: every change once, drawn at most once a frame.

import { follow } from "./api.js";
import { instant } from "./times.js";

// Calls `show` with the rows that are there, `say` with a sentence, `fail` with what ended it.
export function watch(goal, signal, show, say, fail) {
  const held = new Map();
  let drawing = false, changes = 0, upper = null;
  const draw = () => {
    drawing = false;
    if (signal.aborted) return;
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
    upper = told.upper[0] ?? upper;
    if (!drawing) { drawing = true; requestAnimationFrame(draw); }
  };
  follow(goal, take, signal).catch((error) => { if (!signal.aborted) fail(error); });
  return () => upper;
}
