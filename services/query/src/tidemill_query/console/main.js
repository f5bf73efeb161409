// The console: screens by the fragment of the address, and the instant of all of them.

import { token } from "./api.js";
import { screen as ask } from "./ask.js";
import { say } from "./dom.js";
import { screen as graph } from "./graph.js";
import "./past.js";
import { screen as resource } from "./resource.js";
import { address, on, range, refresh, setInstant, state, tell } from "./state.js";
import { instant, stated } from "./times.js";
import { apply, insert } from "./write.js";

const SCREENS = { graph, ask, insert, apply, resource };
const STEPS = 1000;
const byId = (id) => document.getElementById(id);
const main = byId("main"), slider = byId("t"), said = byId("t-said"), exact = byId("t-exact");

let open = null; // of the screen: its end, and where its search is
let focus = {};

function go(address) {
  location.hash = address;
}

function route() {
  open?.abort();
  open = new AbortController();
  const [name, query] = (location.hash.slice(2) || "graph").split("?");
  const parameters = new URLSearchParams(query ?? "");
  const asOf = stated(parameters.get("t") ?? "");
  // An address that was seen states its instant, if only by stating none; a link leaves it as it is.
  if (asOf != null) Object.assign(state, { asOf, given: true });
  else if (history.state?.seen) Object.assign(state, { asOf: null, given: false });
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const screen = Object.hasOwn(SCREENS, name) ? SCREENS[name] : graph;
  document.title = `Tidemill ${name}`;
  focus = screen(main, parameters, open.signal, go) ?? {};
  address();
  instantShown();
}

function instantShown() {
  const bounds = range();
  slider.disabled = !bounds;
  const at = state.asOf;
  const size = bounds ? Math.max(bounds.high - bounds.low, 1) : 1;
  if (document.activeElement !== slider || at == null) {
    slider.value = at == null || !bounds ? STEPS : ((at - bounds.low) / size) * STEPS;
  }
  const words = at == null ? "latest" : instant(at);
  said.value = `${words} · ${state.timeline}`;
  slider.setAttribute("aria-valuetext", words);
  if (document.activeElement !== exact) exact.value = at == null ? "" : instant(at);
}

slider.addEventListener("input", () => {
  const bounds = range();
  if (!bounds) return;
  const share = Number(slider.value) / STEPS;
  setInstant(share === 1 ? null : Math.round(bounds.low + share * (bounds.high - bounds.low)));
});
exact.addEventListener("change", () => {
  const time = stated(exact.value);
  if (time != null || !exact.value.trim()) setInstant(time);
});
byId("latest").addEventListener("click", () => setInstant(null));
byId("window").addEventListener("change", (event) => {
  state.window = Number(event.target.value);
  tell("instant");
});

function themed(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = name === "dark" ? "Light" : "Dark";
}
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
themed(localStorage.getItem("tidemill-theme") ?? (dark ? "dark" : "light"));
byId("theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("tidemill-theme", next);
  themed(next);
});

const dialog = byId("token");
byId("sign").addEventListener("click", () => dialog.showModal());
dialog.addEventListener("close", () => {
  if (dialog.returnValue === "use") token.set(byId("token-text").value.trim());
  if (dialog.returnValue === "forget") token.set("");
  byId("token-text").value = "";
  dialog.returnValue = "";
  refresh().then(route);
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is that of the screen
  main.focus();
});

// Who speaks to a machine, or slips on keys, turns keys of one letter off (WCAG 2.1.4).
const keys = byId("keys");
keys.checked = localStorage.getItem("tidemill-keys") !== "off";
keys.addEventListener("change", () => {
  localStorage.setItem("tidemill-keys", keys.checked ? "on" : "off");
});

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input:not(#keys), textarea, select, dialog");
  if (!keys.checked || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const screen = { 1: "#/graph", 2: "#/ask", 3: "#/insert", 4: "#/apply" }[event.key];
  if (screen) go(screen);
  if (event.key === "/" && focus.search) { event.preventDefault(); focus.search.focus(); }
  if (event.key.toLowerCase() === "l") setInstant(null);
});

on("resources", () => {
  const { problem } = state;
  // NB: it is read aloud when it changes, so it says nothing that changes each second.
  say(byId("said"), problem
    ? `${problem.title} ${problem.detail ?? ""}` : `${state.resources.size} resources`);
  if (problem?.status === 401 && !dialog.open && !token.get()) dialog.showModal();
  instantShown();
});
on("instant", () => { address(); instantShown(); });
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
route();
refresh();
