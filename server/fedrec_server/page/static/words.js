// What the page says: numbers with their units, and events as sentences.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export const PHASES = {
  collecting: "collecting updates",
  sharing: "clients agree on masks",
  masking: "collecting masked updates",
  signing: "clients sign who is in the sum",
  unmasking: "taking the masks off the sum",
  summing: "adding updates up",
  revealing: "the key authority opens the sum",
};

export const STATES = { cannot_start: "can’t start" };
export const BAD_STATES = ["away", "stopped", "cannot_start", "paused"];

export const KINDS = { count: "count", train: "train", evaluate: "evaluate" };

export function bytes(count) {
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function seconds(value) {
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${value.toFixed(0)} s`;
  if (value < 7200) return `${(value / 60).toFixed(0)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

export function ago(value) {
  const unit = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([size]) => value >= size);
  return unit ? `${(value / unit[0]).toFixed(0)} ${unit[1]} ago` : "just now";
}

// Without trailing zeros, for axes.
export const short = (value, digits = 2) => String(Number(value.toFixed(digits)));

export const delta = (value) => (value < 0.001 ? value.toExponential().replace("e-", "e−") : String(value));

export const rate = (value) => (value === null || value === undefined ? "–" : value.toFixed(4));

export const loss = (value) => (value === null || value === undefined ? "–" : value.toPrecision(3));

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

export const epsilon = (value) => (value === 0 ? "0" : value.toPrecision(3));

export function clock(unixSeconds) {
  const at = new Date(unixSeconds * 1000);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString()
    ? time
    : `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time.slice(0, 5)}`;
}

export const asSentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");

// Commas between labels, and a number in place of most of a long list.
export function listed(labels, most = 6) {
  const named = labels.slice(0, most).join(", ");
  return labels.length > most ? `${named} and ${labels.length - most} more` : named;
}

const EVENTS = {
  "round opened": (e, f) => `Round ${e.round} (${f.kind}) opened; ${plural(f.asked, "client")} asked`,
  "collecting ended": (e, f) =>
    `Round ${e.round}: ${plural(f.counted, "update")} to add up` +
    (f.left_out ? `, ${f.left_out} left out` : ""),
  "sum made": (e, f) => `Round ${e.round}: sum made, ${bytes(f.bytes)}`,
  "step ended": (e, f) => `Round ${e.round}: ${f.step} done by ${plural(f.clients, "client")}`,
  "updates refused": (e, f) => `Round ${e.round}: ${plural(f.updates, "update")} refused`,
  "cells paused": (e, f) => `Round ${e.round}: cells ${f.cells.join(", ")} paused`,
  "round published": (e, f) =>
    `Round ${e.round} (${f.kind}) published: ${plural(f.counted, "client")}, ` +
    `${bytes(f.bytes_received)}, ${seconds(f.seconds)}`,
  "round learnt": (e) => `Round ${e.round}: learnt of from the key authority`,
  "round measured": (e, f) => `Round ${e.round} measured${f.reason ? `: ${f.reason}` : ""}`,
  "round abandoned": (e, f) => `Round ${e.round} given up: ${f.reason}`,
  "stop asked for": () => "An operator asked the run to stop",
  "key epoch installed": (e, f) => `Key epoch ${f.epoch} installed, ${plural(f.members, "member")}`,
  "key epoch began": (e, f) => `Key epoch ${f.epoch} began, ${plural(f.members, "member")}`,
  "run finished": (e, f) => `Run ${f.failed ? "failed" : "finished"}: ${f.reason}`,
  "run resumed": (e, f) => `Run goes on after round ${f.after_round}`,
};

export function sentence(event) {
  const say = EVENTS[event.kind];
  if (say) return say(event, event.fields);
  return event.round ? `Round ${event.round}: ${event.kind}` : event.kind;
}

// How an event is coloured, and whether it is worth being read out.
export function mood(event) {
  if (event.kind === "round published") return "good";
  if (event.kind === "run finished") return event.fields.failed ? "bad" : "good";
  return ["round abandoned", "updates refused", "cells paused"].includes(event.kind) ? "bad" : "";
}

export function protectionWords(about) {
  if (about.protection === "none") return ["No protection", "the coordinator reads every update"];
  if (about.protection === "masks") return ["masks", "the coordinator reads sums, no single update"];
  if (about.authority_opens) {
    return [about.protection, "the coordinator reads no update and no sum; the key authority opens sums"];
  }
  return [about.protection, "the coordinator reads no update and no sum; all members hold one key"];
}

export function budgetWords(budget) {
  if (budget === null) {
    return "No differential privacy: sums are exact, no noise was added, and so there is no epsilon.";
  }
  const most = budget.most_sums === null ? "" : ` No more than ${budget.most_sums} noisy sums are released.`;
  return (
    `Differential privacy for a user's whole data, ${budget.mechanism} noise: epsilon may reach ` +
    `${budget.epsilon} at delta ${delta(budget.delta)}, over at most ${budget.rounds_per_user} training ` +
    `rounds a user.${most} Metrics are not released: how good the model is, each client finds out for itself.`
  );
}
