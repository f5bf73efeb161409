// Elements. Whatever a server says becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  element.append(...children.flat(9).filter((child) => child != null && child !== false));
  return element;
}

export const h = (name, attributes, ...children) =>
  filled(document.createElement(name), attributes, children);

export const svg = (name, attributes, ...children) =>
  filled(document.createElementNS(SVG, name), attributes, children);

// Sets an attribute if it has changed: many elements are looked at each second, few change.
export function put(element, name, value) {
  const text = String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// The beginning of a text that would be too long to lay out, with its length.
export const cut = (text, most) => (text.length <= most ? text
  : `${text.slice(0, most)}… (${text.length} characters)`);

export function problem(error) {
  return h("div", { class: "problem", role: "alert" },
    h("p", null, h("strong", null, error.title ?? "The call failed.")),
    h("p", null, cut(error.detail ?? String(error), 20_000)));
}
