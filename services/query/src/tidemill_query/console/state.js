// What the panels share: the resources, the collections, and the instant as of which all is asked.

import { get } from "./api.js";
import { only } from "./times.js";

const PAUSE_MS = 1000;
const SHARE = 4; // an answer that takes long is asked for again after so many times as long
const SAMPLES = 600;

export const state = {
  resources: new Map(),
  collections: new Map(),
  timelines: new Map(), // by the name of a resource
  asOf: null, // null is the latest instant
  given: false, // whether the address states the instant
  window: 600_000,
  timeline: "system",
  samples: new Map(), // by resource: [time of the look, lag]
  problem: null,
  then: { at: null, resources: null, problem: null }, // what was defined at the chosen instant
};

const events = new EventTarget();

export const on = (name, take, signal) =>
  events.addEventListener(name, () => take(), signal ? { signal } : undefined);
export const tell = (name) => events.dispatchEvent(new Event(name));

// Puts parameters of the screen, and the instant, into the address: it is read when it is loaded
// again, or gone back to. With nothing it only follows the instant.
export function address(screen, parameters) {
  const [name, query] = (location.hash.slice(2) || "graph").split("?");
  const told = new URLSearchParams(screen ? parameters : query);
  if (state.asOf == null) told.delete("t");
  else told.set("t", state.asOf);
  const text = told.toString();
  history.replaceState({ seen: true }, "", `#/${screen ?? name}${text ? `?${text}` : ""}`);
}

export const keyOf = (resource) => `${resource.kind}/${resource.name}`;

// The name that people use for a collection: that of one that was made again has a number in its id.
export const nameOf = (id) => id.replace(/^([^/]*)~\d+/, "$1");

const numberOf = (id) => /^[^/]*~(\d+)/.exec(id)?.[1] ?? 1;

function made(collection, among) {
  const name = nameOf(collection).split("/")[0];
  for (const kind of ["View", "Source", "Table"]) {
    const found = among.get(`${kind}/${name}`);
    if (found) return found;
  }
  return null;
}

const makers = new WeakMap(); // by look: each name is read once in it

// The resource that makes a collection, among those of a look.
export function maker(collection, among = state.resources) {
  let known = makers.get(among);
  if (!known) makers.set(among, known = new Map());
  let found = known.get(collection);
  if (found === undefined) known.set(collection, found = made(collection, among));
  return found;
}

export const readsOf = (resource) => (resource.details.reads ?? [])
  .map((each) => maker(each)).filter((each) => each && each !== resource);

let timed = { of: null, known: null }; // of a look at collections: timelines by resource

// By resource the timeline of what it makes; a reader that makes nothing is on that of its input.
export function timelineOf(resource, seen = new Set()) {
  const own = state.timelines.get(resource.name);
  if (own) return own;
  if (timed.of !== state.timelines) timed = { of: state.timelines, known: new WeakMap() };
  const known = timed.known.get(resource);
  if (known) return known;
  seen.add(resource);
  const read = readsOf(resource).find((each) => !seen.has(each));
  const found = read ? timelineOf(read, seen) : "system";
  timed.known.set(resource, found);
  return found;
}

function bounds() {
  let low = null, high = null, age = 0;
  for (const each of state.collections.values()) {
    if (each.timeline !== state.timeline || each.kind === "deadletters") continue;
    const since = only(each.since), upper = only(each.upper);
    if (since != null) low = low == null ? since : Math.min(low, since);
    if (upper != null) high = high == null ? upper - 1 : Math.max(high, upper - 1);
  }
  for (const each of state.resources.values()) age = Math.max(age, each.age_ms ?? 0);
  if (high == null) return null;
  const begun = state.timeline === "system" ? high - age : 0;
  const span = state.window || high - Math.max(low ?? 0, begun);
  return { low: Math.max(low ?? 0, high - span, 0), high: Math.max(high, 0) };
}

let looks = 0;
let kept = { of: "", bounds: null };

// The instants between which the slider moves, on the timeline of what is looked at.
export function range() {
  const of = [looks, state.timeline, state.window].join();
  if (kept.of !== of) kept = { of, bounds: bounds() };
  return kept.bounds;
}

// Whether a resource was not there at the chosen instant, or is not there any more, in words.
function absence(resource) {
  const then = state.then.resources, key = keyOf(resource);
  if (!then) return null;
  if (!then.has(key)) return "not there then";
  return state.resources.has(key) ? null : "deleted since";
}

// ok, warm, hot or none; as of an instant: whether the answer there is definite.
export function condition(resource) {
  const absent = absence(resource);
  if (absent) return { class: "none", says: absent };
  if (!resource.ready) return { class: "hot", says: resource.reason };
  const since = only(resource.since), upper = only(resource.upper);
  if (state.asOf != null && upper != null && timelineOf(resource) === state.timeline) {
    if (since != null && state.asOf < since) return { class: "none", says: "no longer kept" };
    if (state.asOf >= upper) return { class: "hot", says: "not definite yet" };
    return { class: "ok", says: "definite" };
  }
  if (resource.lag_ms == null) return { class: "none", says: resource.reason };
  const lag = resource.lag_ms;
  return { class: lag < 5000 ? "ok" : lag < 60_000 ? "warm" : "hot", says: null };
}

export function setInstant(time) {
  if (state.asOf === time) return;
  state.asOf = time;
  state.given = false;
  tell("instant");
}

export function setTimeline(name) {
  if (state.timeline === name) return;
  state.timeline = name;
  if (!state.given) state.asOf = null; // an instant of another timeline means nothing here
  tell("instant");
}

function sample(resource, now) {
  const key = keyOf(resource);
  const kept = state.samples.get(key) ?? [];
  kept.push([now, resource.lag_ms, only(resource.upper)]);
  if (kept.length > SAMPLES) kept.shift();
  state.samples.set(key, kept);
}

async function look() {
  const found = await get("/v1/resources", { documents: false });
  const now = Date.now();
  looks++;
  state.resources = new Map(found.map((each) => [keyOf(each), each]));
  for (const key of state.samples.keys()) {
    if (!state.resources.has(key)) state.samples.delete(key);
  }
  for (const each of found) sample(each, now);
}

export async function lookAtCollections() {
  const found = await get("/v1/collections");
  looks++;
  // Of collections that had a name one after the other the last one has it.
  found.sort((a, b) => Number(numberOf(a.id)) - Number(numberOf(b.id)));
  state.collections = new Map(found.map((each) => [nameOf(each.id), each]));
  // A source with event time has parts on the system's timeline, too: the whole name counts.
  const outputs = found.filter((each) => !each.id.includes("/") || each.kind === "view");
  state.timelines = new Map(outputs.map((each) => [nameOf(each.id).split("/")[0], each.timeline]));
}

let round = 0;
let waiting = null;

export async function refresh() {
  clearTimeout(waiting);
  const mine = ++round;
  const begun = performance.now();
  try {
    if (!document.hidden) {
      await look();
      if (mine % 5 === 1 || state.collections.size === 0) await lookAtCollections();
    }
    state.problem = null;
  } catch (error) {
    state.problem = error;
  }
  if (mine !== round) return; // another look began meanwhile
  tell("resources");
  const took = performance.now() - begun;
  waiting = setTimeout(refresh, Math.max(PAUSE_MS, took * SHARE));
}
