// Calls of this server, with the token of this tab.

const KEPT = "tidemill-token";

export class Problem extends Error {
  constructor(members) {
    super(members.detail ?? members.title);
    Object.assign(this, members);
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEPT) ?? "",
  set: (text) => (text ? sessionStorage.setItem(KEPT, text) : sessionStorage.removeItem(KEPT)),
};

// A number as it was written: one beyond 2^53, or a float such as 45.0, is no other one here.
export class Exact {
  constructor(text) { this.text = text; }
  toString() { return this.text; }
  toJSON() { return this.text; }
}

const parsed = (text) => JSON.parse(text, (_, value, context) =>
  typeof value === "number" && context?.source && context.source !== String(value)
    ? new Exact(context.source) : value);

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "The server does not answer.", detail: error.message, status: 0 });
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  try {
    throw new Problem(JSON.parse(text));
  } catch (error) {
    if (error instanceof Problem) throw error;
    throw new Problem({ title: "The call failed.", detail: text, status: answer.status });
  }
}

export function path(base, parameters) {
  const given = Object.entries(parameters ?? {}).filter(([, value]) => value != null);
  const query = new URLSearchParams(given).toString();
  return query ? `${base}?${query}` : base;
}

export const get = async (base, parameters, signal) =>
  (await ask(path(base, parameters), { signal })).json();

export const post = async (base, body, type, headers, signal) => {
  const options = { method: "POST", body, signal, headers: { "Content-Type": type, ...headers } };
  return (await ask(base, options)).json();
};

// A token for a call that may be repeated.
export function once() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// The refusal to follow what a page could only show with long pauses.
export const tooLong = (why) => new Problem({
  title: "This answer is too long to be followed here.",
  detail: `${why}: name a condition in the goal, or ask without following`,
  status: 400,
});

async function* lines(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const found = (rest + value).split("\n");
      rest = found.pop();
      yield* found;
    }
    if (rest) yield rest;
  } finally {
    await reader.cancel().catch(() => {});
  }
}

// The first rows of an answer, and its instant; what comes beyond them is not read.
export async function rows(base, parameters, most, signal) {
  const headers = { Accept: "application/x-ndjson" };
  const answer = await ask(path(base, parameters), { headers, signal });
  const found = [];
  let more = false;
  for await (const line of lines(answer)) {
    if (!line) continue;
    if (found.length === most) { more = true; break; }
    found.push(parsed(line));
  }
  return { rows: found, more, at: Number(answer.headers.get("Tidemill-As-Of")),
           since: answer.headers.get("Tidemill-Since"), upper: answer.headers.get("Tidemill-Upper"),
           note: answer.headers.get("Tidemill-Note") };
}

const EVENT_CHARS_MAX = 2_000_000; // more is read and drawn for longer than a frame

// Each event once, over every broken connection: the last id is sent when it connects again. Where
// the goal means another collection by then, `anew` is called, and all of it comes again.
export async function follow(goal, take, anew, signal) {
  let last = null;
  while (!signal.aborted) {
    try {
      const headers = last == null ? {} : { "Last-Event-ID": last };
      const answer = await ask(path("/v1/subscribe", { goal, snapshot: true }), { headers, signal });
      if (answer.status === 204) return;
      let id = last, name = "message", data = [], size = 0;
      for await (const line of lines(answer)) {
        if (line.startsWith("id: ")) id = line.slice(4);
        else if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) {
          data.push(line.slice(6));
          size += line.length;
          if (size > EVENT_CHARS_MAX) throw tooLong("its changes at one instant are too many");
        }
        else if (line === "") {
          if (data.length) {
            const told = parsed(data.join("\n"));
            if (name === "problem") throw new Problem(told);
            last = id;
            take(told);
            if (name === "end") return;
          }
          name = "message";
          data = [];
          size = 0;
        }
      }
    } catch (error) {
      if (signal.aborted || error.name === "AbortError") return;
      if (error.reason === "LastEventId" && last != null) { last = null; anew(); continue; }
      if (error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}
