// Records of the language, of the rows of an answer.

import { Exact } from "./api.js";

// Types that a record writes as TYPE("text"), by what their columns are called.
const TYPED = [
  [/^timestamp/, "timestamp"], [/^date32/, "date"], [/^decimal/, "decimal"],
  [/^fixed_size_binary\[16\]/, "uuid"],
];

// The text of a value of JSON, with its numbers as they were written.
export function jsonText(value) {
  if (value instanceof Exact) return value.text;
  if (Array.isArray(value)) return `[${value.map(jsonText).join(",")}]`;
  if (value == null || typeof value !== "object") return JSON.stringify(value ?? null);
  const members = Object.entries(value).map(
    ([name, each]) => `${JSON.stringify(name)}:${jsonText(each)}`);
  return `{${members.join(",")}}`;
}

const hexOf = (base64) => Array.from(atob(base64),
  (char) => char.charCodeAt(0).toString(16).padStart(2, "0")).join("");

function literal(value, type = "") {
  if (value == null) return "null";
  if (type === "large_string") return `json(${JSON.stringify(jsonText(value))})`;
  if (type === "binary") return `bytes("${hexOf(value)}")`;
  const typed = TYPED.find(([pattern]) => pattern.test(type));
  if (typed) return `${typed[1]}(${JSON.stringify(value instanceof Exact ? value.text : value)})`;
  if (type.startsWith("duration")) return value;
  if (value instanceof Exact) return value.text;
  if (typeof value === "number") {
    return type === "double" && Number.isInteger(value) ? `${value}.0` : String(value);
  }
  return typeof value === "boolean" ? String(value) : JSON.stringify(value);
}

function parafacts(row, events) {
  if (!events || row.time == null) return "";
  return ` @time(${row.time})`;
}

// The arguments of a goal, cut at the commas outside of brackets and texts.
export function arguments_(text) {
  const found = [""];
  let deep = 0, quoted = false;
  for (let at = 0; at < text.length; at++) {
    const char = text[at];
    if (quoted && char === "\\") { found[found.length - 1] += char + text[++at]; continue; }
    if (char === '"') quoted = !quoted;
    if (!quoted && "([{".includes(char)) deep++;
    if (!quoted && ")]}".includes(char)) deep--;
    if (!quoted && !deep && char === ",") found.push("");
    else found[found.length - 1] += char;
  }
  return found.map((each) => each.trim()).filter(Boolean);
}

// The record of a row, or null where the goal does not name every argument.
export function recordOf(goal, row, collection) {
  const events = collection != null && collection.timeline !== "system";
  const open = goal.indexOf("(");
  if (open < 0) {
    if (!collection) return null;
    const columns = collection.columns.filter((each) =>
      !each.name.startsWith("_") && !(events && ["time", "expires"].includes(each.name)));
    const values = columns.map((each) => literal(row[each.name], each.type));
    return `${goal}(${values.join(", ")})${parafacts(row, events)}`;
  }
  const close = goal.lastIndexOf(")");
  const values = [];
  const types = new Map((collection?.columns ?? []).map((one) => [one.name, one.type]));
  for (const [at, each] of arguments_(goal.slice(open + 1, close)).entries()) {
    const [, named, variable] = /^(?:(\w+)\s*:\s*)?(.*)$/s.exec(each);
    if (variable === "_") return null;
    const type = named ? types.get(named) : collection?.columns[at]?.type;
    const value = variable in row ? literal(row[variable], type) : variable;
    values.push(named ? `${named}: ${value}` : value);
  }
  return `${goal.slice(0, open)}(${values.join(", ")})${parafacts(row, events)}`;
}
