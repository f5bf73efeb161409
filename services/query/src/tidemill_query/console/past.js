// Resources as they were defined at the chosen instant. Definitions are on the timeline of the
// system: while the slider is on another one, none is asked for.

import { get } from "./api.js";
import { keyOf, on, state, tell } from "./state.js";

const PAUSE_MS = 150; // an instant that the slider only passes is not asked for

let chosen = null, waiting = null, asking = null;

const wanted = () => (state.timeline === "system" ? state.asOf : null);

function told(at, resources, problem) {
  state.then = { at, resources, problem };
  tell("past");
}

async function ask(at) {
  const { signal } = (asking = new AbortController());
  try {
    const found = await get("/v1/resources", { documents: false, as_of: at }, signal);
    if (at === chosen) told(at, new Map(found.map((each) => [keyOf(each), each])), null);
  } catch (error) {
    if (error.name !== "AbortError" && at === chosen) told(at, null, error);
  }
}

function follow() {
  const at = wanted();
  if (at === chosen) return;
  chosen = at; // what is under way is of another instant, also where the slider came back
  clearTimeout(waiting);
  asking?.abort();
  if (at == null) told(null, null, null);
  else waiting = setTimeout(ask, PAUSE_MS, at);
}

on("instant", follow);
follow();

// A text that is asked for as of an instant: `take` gets it, or the problem, once the slider rests.
export function definition(kind, name, signal, take) {
  let shown = null, pause = null, call = null;
  signal.addEventListener("abort", () => { clearTimeout(pause); call?.abort(); });
  return (at) => {
    if (at === shown) return;
    shown = at;
    clearTimeout(pause);
    call?.abort();
    if (at == null) { take(null, null, null); return; }
    pause = setTimeout(async () => {
      call = new AbortController();
      try {
        const address = [kind, name].map(encodeURIComponent).join("/");
        take(at, await get(`/v1/resources/${address}`, { as_of: at }, call.signal), null);
      } catch (error) {
        if (error.name !== "AbortError") take(at, null, error);
      }
    }, PAUSE_MS);
  };
}
