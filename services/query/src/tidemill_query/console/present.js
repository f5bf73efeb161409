// Panels of the present say so while the slider stands in the past.

import { h } from "./dom.js";
import { on, state } from "./state.js";

// A mark beside a heading, seen as long as an instant is chosen.
export function now(signal) {
  const mark = h("span", { class: "now" }, "now");
  const update = () => { mark.hidden = state.asOf == null; };
  on("instant", update, signal);
  update();
  return mark;
}

// A sentence above a screen whose acts and answers are those of the present.
export function nowSays(signal, text) {
  const says = h("p", { class: "sentence" }, now(signal), ` ${text}`);
  const update = () => { says.hidden = state.asOf == null; };
  on("instant", update, signal);
  update();
  return says;
}
