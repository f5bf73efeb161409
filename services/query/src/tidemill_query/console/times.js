// Instants and spans, as people read them.

const EPOCH_LIKE = 1e11; // smaller numbers are no milliseconds of our years

export function instant(time) {
  if (time == null) return "none";
  return Math.abs(time) < EPOCH_LIKE ? String(time) : new Date(time).toISOString().replace("T", " ");
}

// Milliseconds that a text states: a number, or ISO 8601; null if it states none.
export function stated(text) {
  const plain = text.trim();
  if (/^\d{1,15}$/.test(plain)) return Number(plain);
  const found = Date.parse(plain.replace(" ", "T"));
  return plain && !Number.isNaN(found) ? found : null;
}

export function span(ms) {
  if (ms == null) return "unknown";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3_600_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  return `${Math.round(ms / 86_400_000)} days`;
}

// The only time of a frontier; null for the empty one, which has none.
export const only = (frontier) => (frontier?.length ? frontier[0] : null);
