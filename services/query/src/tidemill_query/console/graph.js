// The resources and what each reads: at most NODES_MAX around the chosen one are drawn.

import { move, parts, told } from "./bars.js";
import { h, problem, put, say, svg } from "./dom.js";
import { ResourceList } from "./list.js";
import { explain } from "./lateness.js";
import { address, keyOf, maker, on, setTimeline, state, timelineOf } from "./state.js";

const NODES_MAX = 150;
const WIDTH = 190, HEIGHT = 56, GAP_X = 70, GAP_Y = 18;

// Of the last look and the last past: a slider that moves asks for them at each frame, and they
// change with these alone.
let kept = {};

// The resources of now and of the chosen instant, and who reads whom; of one that was there at the
// instant what it read then.
function picture() {
  const { resources, then } = state;
  if (kept.resources === resources && kept.then === then.resources) return kept;
  const shown = new Map([...(then.resources ?? []), ...resources]);
  const edges = [];
  for (const [key, each] of shown) {
    const of = then.resources?.get(key) ?? each;
    for (const read of of.details.reads ?? []) {
      const found = maker(read, shown);
      if (found && found !== each) edges.push([keyOf(found), key]);
    }
  }
  kept = { resources, then: then.resources, shown, edges };
  return kept;
}

// What is not ready comes first, then by name.
const order = (a, b) =>
  (a.ready - b.ready) || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);

// The nodes to draw: all of them, or the nearest to the chosen one.
function near({ shown, edges: all }, chosen) {
  if (shown.size <= NODES_MAX) return new Set(shown.keys());
  const beside = new Map([...shown.keys()].map((key) => [key, []]));
  for (const [from, to] of all) {
    beside.get(from)?.push(to); // NB: not a copy for each: many views read one table
    beside.get(to)?.push(from);
  }
  const first = shown.has(chosen) ? chosen : shown.keys().next().value;
  const found = new Set([first]);
  for (const key of found) {
    for (const next of beside.get(key) ?? []) {
      if (found.size < NODES_MAX) found.add(next);
    }
  }
  return found;
}

// Columns by the longest way from an origin, rows by the rows of what is read.
function places(shown, all) {
  const reads = new Map([...shown].map((key) => [key, []]));
  for (const [from, to] of all) {
    if (reads.has(from) && reads.has(to)) reads.get(to).push(from);
  }
  const depth = new Map();
  const deep = (key, path) => {
    if (depth.has(key)) return depth.get(key);
    if (path.has(key)) return 0; // a cycle of views stands side by side
    path.add(key);
    const found = Math.max(-1, ...reads.get(key).map((each) => deep(each, path))) + 1;
    path.delete(key);
    depth.set(key, found);
    return found;
  };
  const columns = [];
  for (const key of [...shown].sort()) {
    const at = deep(key, new Set());
    (columns[at] ??= []).push(key);
  }
  const found = new Map();
  columns.forEach((column, x) => {
    const middle = (key) => {
      const rows = reads.get(key).map((each) => found.get(each)?.y ?? 0);
      return rows.length ? rows.reduce((a, b) => a + b, 0) / rows.length : 0;
    };
    if (x) column.sort((a, b) => middle(a) - middle(b));
    column.forEach((key, y) => found.set(key, {
      x: 12 + x * (WIDTH + GAP_X), y: 12 + y * (HEIGHT + GAP_Y),
    }));
  });
  return found;
}

class Drawing {
  constructor(choose, open) {
    this.choose = choose;
    this.open = open;
    this.shape = "";
    this.nodes = new Map();
    this.lines = [];
    this.canvas = svg("svg", { role: "group", "aria-label": "Graph of resources" });
  }

  set(chosen) {
    const known = picture();
    const shown = near(known, chosen);
    const drawn = known.edges.filter(([from, to]) => shown.has(from) && shown.has(to));
    const shape = JSON.stringify([[...shown], drawn]);
    if (shape !== this.shape) this.build(shown, drawn, shape);
    const path = chosen && state.resources.has(chosen)
      ? explain(state.resources.get(chosen)).steps.map(keyOf) : [];
    for (const [key, node] of this.nodes) {
      const resource = known.shown.get(key);
      if (!resource) continue;
      const found = told(resource);
      put(node.element, "class", `node ${found.class}${key === chosen ? " chosen" : ""}`);
      put(node.element, "aria-label", `${resource.kind} ${resource.name}, ${found.says}`);
      say(node.says, `${resource.kind} · ${found.says}`.slice(0, 32));
      move(node.element, resource, WIDTH - 20, 10);
    }
    for (const line of this.lines) {
      const at = path.indexOf(line.to);
      put(line.element, "class", at >= 0 && path[at + 1] === line.from ? "edge on" : "edge");
    }
  }

  build(shown, all, shape) {
    this.shape = shape;
    const at = places(shown, all);
    this.nodes.clear();
    this.lines = all.filter(([from, to]) => at.has(from) && at.has(to)).map(([from, to]) => {
      const a = at.get(from), b = at.get(to);
      const x1 = a.x + WIDTH, y1 = a.y + HEIGHT / 2, x2 = b.x, y2 = b.y + HEIGHT / 2;
      const bend = Math.max(30, Math.abs(x2 - x1) / 2);
      const d = `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
      return { from, to, element: svg("path", { class: "edge", d }) };
    });
    for (const [key, { x, y }] of at) {
      const name = key.split("/")[1];
      const says = svg("text", { class: "small", x: 10, y: 36 });
      const element = svg("g", {
        class: "node", transform: `translate(${x} ${y})`, tabindex: "0", role: "button",
        onclick: () => this.choose(key), ondblclick: () => this.open(key),
        onkeydown: (event) => {
          if (event.key === "Enter") this.open(key);
          if (event.key === " ") { event.preventDefault(); this.choose(key); }
        },
      }, svg("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 7 }),
      svg("text", { x: 10, y: 20 }, name.length > 24 ? `${name.slice(0, 23)}…` : name), says,
      ...parts(WIDTH - 20, 10, 43));
      this.nodes.set(key, { element, says });
    }
    const right = Math.max(0, ...[...at.values()].map((each) => each.x)) + WIDTH + 12;
    const low = Math.max(0, ...[...at.values()].map((each) => each.y)) + HEIGHT + 12;
    put(this.canvas, "width", right);
    put(this.canvas, "height", low);
    this.canvas.replaceChildren(
      ...this.lines.map((each) => each.element),
      ...[...this.nodes.values()].map((each) => each.element),
    );
  }
}

export function screen(main, parameters, signal, go) {
  let chosen = parameters.get("at");
  const search = h("input", {
    type: "search", class: "wide", "aria-label": "Search resources", placeholder: "search",
    oninput: () => update(),
  });
  const says = h("p", { class: "sentence" });
  const links = h("div", { class: "row" });
  const list = new ResourceList(choose);
  const drawing = new Drawing(choose, open);
  const count = h("p", { class: "soft" });
  const plot = h("div", { class: "plot", role: "region", "aria-label": "Graph", tabindex: "0" },
    drawing.canvas);

  function choose(key) {
    chosen = key;
    const resource = picture().shown.get(key);
    if (resource) setTimeline(timelineOf(resource));
    address("graph", { at: key });
    update();
  }

  function open(key) {
    go(`#/resource?key=${encodeURIComponent(key)}`);
  }

  function update() {
    if (state.problem) {
      plot.replaceChildren(problem(state.problem)); // never a picture of before
      drawing.shape = "";
      return;
    }
    if (!plot.contains(drawing.canvas)) plot.replaceChildren(drawing.canvas);
    const wanted = search.value.trim().toLowerCase();
    const { shown: all } = picture();
    const shown = [...all.values()]
      .filter((each) => keyOf(each).toLowerCase().includes(wanted))
      .sort(order);
    list.set(shown, chosen);
    drawing.set(chosen);
    const drawn = drawing.nodes.size;
    const { problem: unknown } = state.then;
    say(count, [
      `${all.size} resources`,
      drawn < all.size ? `the ${drawn} nearest to the chosen one are drawn` : "",
      unknown ? `those of now, since ${unknown.detail ?? unknown.title}` : "",
    ].filter(Boolean).join("; "));
    const resource = all.get(chosen);
    say(says, !resource ? "Choose a resource to see why it is late."
      : state.resources.has(chosen) ? explain(resource).text
        : `${resource.kind} ${resource.name} is deleted since.`);
    const wantedLink = resource ? chosen : "";
    if (links.dataset.of !== wantedLink) {
      links.dataset.of = wantedLink;
      links.replaceChildren(...(resource
        ? [h("button", { type: "button", class: "first", onclick: () => open(chosen) },
          `Open ${resource.name}`)] : []));
    }
  }

  main.replaceChildren(h("div", { class: "two" },
    h("div", null, h("h2", null, "Resources"), h("div", { class: "row" }, search), list.element, count),
    h("div", null, says, links, plot)));
  // Once a frame at most: a slider tells of more instants than are drawn.
  let waiting = false;
  function soon() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      if (!signal.aborted) update();
    });
  }

  on("resources", soon, signal);
  on("instant", soon, signal);
  on("past", soon, signal);
  update();
  return { search };
}
