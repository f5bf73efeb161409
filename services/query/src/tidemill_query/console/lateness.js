// Why a resource is late: the path of the least upper through what it reads, in a sentence.

import { readsOf, state, timelineOf } from "./state.js";
import { instant, only, span } from "./times.js";

const NEAR_MS = 1000; // a reader is never exactly as far as its input
const KEEPS_UP_MS = 5000;

function behind(resource) {
  return resource.lag_ms ?? -1;
}

// From the resource to the origin of its lag: each one waits for the next.
export function path(resource) {
  const found = [resource];
  for (;;) {
    const here = found[found.length - 1];
    const read = readsOf(here).filter((each) => !found.includes(each));
    const open = read.filter((each) => only(each.upper) != null);
    if (!open.length) return found;
    const same = open.filter((each) => timelineOf(each) === timelineOf(here));
    const least = same.length
      ? same.reduce((a, b) => (only(a.upper) <= only(b.upper) ? a : b))
      : open.reduce((a, b) => (behind(a) >= behind(b) ? a : b));
    const own = same.length && only(here.upper) != null
      && only(least.upper) - only(here.upper) > NEAR_MS;
    if (own) return found; // its inputs are further than it is itself
    found.push(least);
  }
}

const named = (resource) => `${resource.kind} ${resource.name}`;

function told(resource) {
  const upper = only(resource.upper);
  if (resource.upper == null) return `${named(resource)} makes no collection`;
  if (upper == null) return `${named(resource)} is closed: all of it is definite`;
  const keeps = resource.ready && resource.lag_ms != null && resource.lag_ms < KEEPS_UP_MS;
  const verb = keeps ? "keeps up: it is" : "is";
  return `${named(resource)} ${verb} definite before ${instant(upper)}, ${span(resource.lag_ms)} behind`;
}

function cause(resource) {
  const reasons = [];
  if (!resource.ready || resource.message) {
    reasons.push([resource.reason, resource.message].filter(Boolean).join(": "));
  }
  if (resource.records_behind) {
    const rate = resource.records_per_s == null ? "" : ` at ${resource.records_per_s} records/s`;
    const left = resource.left_ms == null ? "" : `, ${span(resource.left_ms)} left`;
    reasons.push(`it has ${resource.records_behind} records to read${rate}${left}`);
  }
  const moved = resource.details.movedBy;
  if (moved) reasons.push(`its frontier is moved by ${moved}`);
  return reasons.length ? ` (${reasons.join("; ")})` : "";
}

// A sentence, and the resources of the path.
export function explain(resource) {
  const steps = path(resource);
  const last = steps[steps.length - 1];
  const waits = steps.slice(1).map((each) => `waits for ${named(each)} (${span(each.lag_ms)} behind)`);
  const chain = waits.length ? `; it ${waits.join(", which ")}` : "";
  const own = steps.length === 1 && readsOf(resource).length > 0;
  const end = own ? "; its inputs are further, so the lag is its own" : "";
  const whole = `${told(steps[0])}${chain}${end}${cause(last)}.`;
  const asOf = state.asOf;
  const upper = only(resource.upper);
  if (asOf == null) return { steps, text: whole };
  const yet = upper != null && asOf >= upper ? `As of ${instant(asOf)} nothing is definite yet. ` : "";
  return { steps, text: `${yet}Now: ${whole}` };
}
