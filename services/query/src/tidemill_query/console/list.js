// A list of any length: only the rows that can be seen are elements.

import { bar, move, told } from "./bars.js";
import { h, put, say } from "./dom.js";
import { keyOf } from "./state.js";

const HEIGHT = 44;

export class ResourceList {
  constructor(choose) {
    this.choose = choose;
    this.shown = [];
    this.chosen = null;
    this.rows = new Map();
    this.space = h("div", { role: "presentation" });
    this.element = h("div", {
      class: "list", role: "listbox", tabindex: "0", "aria-label": "Resources",
      onscroll: () => this.draw(), onkeydown: (event) => this.key(event),
    }, this.space);
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  set(resources, chosen) {
    this.shown = resources;
    this.chosen = chosen;
    this.space.style.height = `${resources.length * HEIGHT}px`;
    this.draw();
  }

  key(event) {
    const at = this.shown.findIndex((each) => keyOf(each) === this.chosen);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 };
    const step = steps[event.key];
    if (step == null || !this.shown.length) return;
    event.preventDefault();
    const next = Math.min(Math.max(at + step, 0), this.shown.length - 1);
    const top = next * HEIGHT, view = this.element;
    if (top < view.scrollTop) view.scrollTop = top;
    if (top + HEIGHT > view.scrollTop + view.clientHeight) {
      view.scrollTop = top + HEIGHT - view.clientHeight;
    }
    this.choose(keyOf(this.shown[next]));
  }

  draw() {
    const view = this.element;
    const from = Math.max(Math.floor(view.scrollTop / HEIGHT) - 3, 0);
    const to = Math.min(from + Math.ceil(view.clientHeight / HEIGHT) + 7, this.shown.length);
    const wanted = new Set();
    for (let at = from; at < to; at++) {
      const resource = this.shown[at], key = keyOf(resource);
      wanted.add(key);
      this.fill(this.rows.get(key) ?? this.row(key), resource, at);
    }
    for (const [key, row] of this.rows) {
      if (wanted.has(key)) continue;
      row.element.remove();
      this.rows.delete(key);
    }
    const active = this.rows.get(this.chosen);
    if (active) put(view, "aria-activedescendant", active.element.id);
    else view.removeAttribute("aria-activedescendant");
  }

  row(key) {
    const state = h("span", { class: "state" }), kind = h("span", { class: "kind" });
    const name = h("span", null), drawn = bar(300);
    const element = h("div",
      { role: "option", id: `r-${key.replace("/", "-")}`, onclick: () => this.choose(key) },
      h("div", { class: "name" }, h("span", null, name, " ", kind), state), drawn);
    this.space.append(element);
    const row = { element, name, kind, state, drawn };
    this.rows.set(key, row);
    return row;
  }

  fill(row, resource, at) {
    const found = told(resource);
    say(row.name, resource.name);
    say(row.kind, resource.kind);
    say(row.state, found.says);
    put(row.element, "class", `item ${found.class}`);
    put(row.element, "aria-selected", keyOf(resource) === this.chosen);
    put(row.element, "aria-setsize", this.shown.length);
    put(row.element, "aria-posinset", at + 1);
    row.element.style.top = `${at * HEIGHT}px`;
    move(row.drawn, resource, 300);
  }
}
