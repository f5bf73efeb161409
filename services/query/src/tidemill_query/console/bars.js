// Since and upper of a resource as a bar within the range of the slider.

import { put, svg } from "./dom.js";
import { condition, range, state, timelineOf } from "./state.js";
import { only, span } from "./times.js";

export function bar(width) {
  return svg("svg", { viewBox: `0 0 ${width} 8`, preserveAspectRatio: "none", "aria-hidden": "true" },
    ...parts(width));
}

export const parts = (width, x = 0, y = 1) => [
  svg("rect", { class: "track", x, y, width, height: 6 }),
  svg("rect", { class: "held", x, y, width: 0, height: 6 }),
  svg("line", { class: "at", x1: x, x2: x, y1: y - 1, y2: y + 7, visibility: "hidden" }),
];

// Moves the bar of a holder of `parts` to the present frontiers.
export function move(holder, resource, width, x = 0) {
  const held = holder.querySelector(".held"), at = holder.querySelector(".at");
  const bounds = timelineOf(resource) === state.timeline ? range() : null;
  const upper = only(resource.upper);
  if (!bounds || (resource.upper?.length && upper == null)) {
    put(held, "width", 0);
    put(at, "visibility", "hidden");
    return;
  }
  const size = Math.max(bounds.high - bounds.low, 1);
  const place = (time) => Math.min(Math.max((time - bounds.low) / size, 0), 1) * width;
  const from = place(only(resource.since) ?? bounds.low);
  const to = place(upper ?? (resource.upper ? bounds.high : bounds.low));
  put(held, "x", (x + from).toFixed(1));
  put(held, "width", Math.max(to - from, 0).toFixed(1));
  const shown = state.asOf != null;
  put(at, "visibility", shown ? "visible" : "hidden");
  if (shown) {
    const here = (x + place(state.asOf)).toFixed(1);
    put(at, "x1", here);
    put(at, "x2", here);
  }
}

export function told(resource) {
  const found = condition(resource);
  return { class: `s-${found.class}`, says: found.says ?? `${span(resource.lag_ms)} behind` };
}
