// Puts together what the feed tells, and writes it into the page; text only, never markup.

import { Chart } from "./charts.js";
import { Feed } from "./feed.js";
import * as words from "./words.js";

const SHOWN_MEMBERS = 100;
const SHOWN_ROUNDS = 12;
const KEPT_EVENTS = 300;
const SHOWN_EVENTS = 80;

const at = (id) => document.getElementById(id);
const known = { about: null, status: null, rounds: new Map(), events: [], heardAt: 0 };
let state = "waiting";
let showsAll = false;

const BYTE_TICKS = [0, 1, 2, 3].flatMap((power) => [1, 2, 5, 10, 20, 50, 100, 200, 500].map((step) => step * 1024 ** power));
const QUALITY = "Quality on validation items";
const UNRELEASED = "Not released: noise covers the sums, and metrics stay with the clients.";

const charts = {
  quality: new Chart({
    title: QUALITY,
    empty: "Comes with the first round that trains.",
    curves: [
      { label: "HR", value: (point) => point.validation_hr },
      { label: "NDCG", value: (point) => point.validation_ndcg },
    ],
    show: words.rate,
    axis: (value) => value.toFixed(3),
  }),
  loss: new Chart({
    title: "Training loss, mean over users",
    empty: "Comes with the first round that trains.",
    curves: [{ label: "loss", value: (point) => point.loss }],
    show: words.loss,
    axis: (value) => words.short(value, 4),
  }),
  bytes: new Chart({
    title: "Bytes a round",
    empty: "Comes with the first round.",
    curves: [
      { label: "received from clients", value: (point) => point.bytes_received, bars: true },
      { label: "published sum", value: (point) => point.bytes_published },
    ],
    show: words.bytes,
    ticks: BYTE_TICKS,
    fromZero: true,
  }),
  seconds: new Chart({
    title: "Time a round took",
    empty: "Comes with the first round.",
    curves: [{ label: "from opening to publishing", value: (point) => point.seconds, bars: true }],
    show: words.seconds,
    axis: (value) => `${words.short(value)} s`,
    fromZero: true,
  }),
};
at("charts").append(...Object.values(charts).map((chart) => chart.element));

function made(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function write(id, text) {
  const element = at(id);
  if (element.textContent !== text) element.textContent = text;
}

const rounds = () => [...known.rounds.values()].sort((one, other) => one.round - other.round);

// The first round with a metric's highest value on validation items; null before any has one.
function best(points, metric) {
  const name = `validation_${metric}`;
  let found = null;
  for (const point of points) {
    if (point[name] !== null && (!found || point[name] > found[name])) found = point;
  }
  return found;
}

// What a round measured: the version before it, which the page lacks for a recovered run's first one.
function measured(points, point) {
  const before = points[points.indexOf(point) - 1];
  return `${before ? `version ${before.round}, ` : ""}in round ${point.round}`;
}

// What a stranger wants to know first: [state, headline, story].
function situation(status) {
  if (status.finished) {
    const why = words.asSentence(status.finish_reason);
    const failed = known.events.some((event) => event.kind === "run finished" && event.fields.failed);
    return failed ? ["failed", "Failed", why] : ["finished", "Finished", why];
  }
  const current = status.current;
  if (!current || status.waits_for) {
    if (status.stalled) return ["stalled", "Stalled", `Waits for ${status.waits_for}.`];
    if (!status.waits_for) return ["running", "Running", "The next round opens."];
    return ["waiting", "Waiting", `Waits for ${status.waits_for}.`];
  }
  const ends = status.stop_asked ? " The run ends with it, as an operator asked." : "";
  const story = `Round ${current.round} (${current.kind}): ${words.PHASES[current.phase] ?? current.phase}.${ends}`;
  if (status.stalled) return ["stalled", "Stalled, trying again", story];
  if (current.phase !== "revealing") return ["running", "Running", story];
  const heard = status.authority_heard;
  const silent = !heard || status.now - heard > 60;
  if (!silent) return ["running", "Running", story];
  const when = heard ? `last heard of at ${words.clock(heard)}` : "not heard of since the coordinator started";
  return ["waiting", "Waiting", `Round ${current.round} is complete and waits for the key authority, ${when}.`];
}

function showNow(status) {
  const [kind, headline, story] = situation(status);
  at("now").dataset.state = kind;
  write("state", headline);
  write("story", story);
  const abandoned = status.rounds_abandoned ? `, ${status.rounds_abandoned} given up` : "";
  write("done", `${status.rounds_published} of ${status.rounds_planned} rounds published${abandoned}`);
  at("progress").max = status.rounds_planned;
  at("progress").value = status.rounds_published;
  const current = status.finished ? null : status.current;
  at("arrivals").hidden = !current;
  if (current) {
    write("arrived", `${current.arrived} of ${words.plural(current.expected, "update")} arrived, ${words.bytes(current.bytes_received)}`);
    write("closes", current.seconds_left ? `closes in ${words.seconds(current.seconds_left)} at the latest` : "");
    at("arriving").max = Math.max(1, current.expected);
    at("arriving").value = current.arrived;
  }
  const awaited = current ? status.awaited : [];
  at("awaited").hidden = awaited.length === 0;
  if (awaited.length) at("awaited").replaceChildren("Waits for ", made("strong", words.listed(awaited)));
  document.title = `${headline}, ${status.rounds_published}/${status.rounds_planned} – ${status.federation}`;
}

function tile(name, value, about, { warns = false, spent = null } = {}) {
  const box = made("div", undefined, warns ? "tile warns" : "tile");
  const said = made("dd");
  said.append(made("div", value, "value"));
  if (spent !== null) {
    const meter = made("progress", undefined, spent > 1 ? "full" : "");
    meter.max = 1;
    meter.value = Math.min(1, spent);
    meter.setAttribute("aria-label", name);
    said.append(meter);
  }
  if (about) said.append(made("div", about, "about"));
  box.append(made("dt", name), said);
  return box;
}

function showTiles(status, about) {
  const points = rounds();
  const quality = status.quality;
  const K = about.at;
  const top = (name, split) => {
    const value = quality?.[`${split}_${name}`] ?? null;
    const none = about.budget ? "not released under noise" : "nothing measured yet";
    if (value === null) return tile(`${name.toUpperCase()}@${K}, ${split}`, "–", none);
    const found = split === "validation" ? best(points, name) : null;
    const peak = found ? `best ${words.rate(found[`validation_${name}`])}: ${measured(points, found)}` : "";
    return tile(`${name.toUpperCase()}@${K}, ${split}`, words.rate(value), peak);
  };
  const tiles = [top("hr", "validation"), top("ndcg", "validation")];
  if (quality?.test_hr !== null && quality?.test_hr !== undefined) {
    tiles.push(tile(`HR@${K}, test`, words.rate(quality.test_hr), `NDCG@${K} ${words.rate(quality.test_ndcg)}`));
  }
  tiles.push(privacyTile(status, about.budget));
  const [name, who] = words.protectionWords(about);
  tiles.push(tile("Protection", name, who, { warns: about.protection === "none" }));
  const received = points.reduce((sum, point) => sum + point.bytes_received, status.current?.bytes_received ?? 0);
  const sent = points.reduce((sum, point) => sum + point.bytes_published, 0);
  tiles.push(tile("Received from clients", words.bytes(received), `sums published: ${words.bytes(sent)}`));
  tiles.push(tile("Clients here", `${status.clients_here} of ${status.clients_in_roster}`, `key epoch ${status.epoch}`));
  at("tiles").replaceChildren(...tiles);
}

function showMembers(status) {
  const shown = status.members.slice(0, SHOWN_MEMBERS);
  at("members").replaceChildren(
    ...shown.map((member) => {
      const row = made("tr", undefined, words.BAD_STATES.includes(member.state) ? "bad" : "");
      const name = made("th", member.name);
      name.scope = "row";
      const does = made("td", undefined, "free");
      does.append(made("span", words.STATES[member.state] ?? member.state, "state"));
      if (member.why) does.append(made("span", ` ${member.why}`, "quiet"));
      row.append(
        name,
        does,
        made("td", member.heard ? words.ago(status.now - member.heard) : "–", "number"),
        made("td", member.version || "–", "number wide"),
        made("td", String(member.model), "number wide"),
        made("td", member.last_counted ? `round ${member.last_counted}` : "–", "number"),
        made("td", words.bytes(member.bytes_counted), "number wide"),
      );
      return row;
    }),
  );
  const more = status.clients_in_roster - shown.length;
  at("more-members").hidden = more <= 0;
  write("more-members", `and ${words.plural(more, "more client")}`);
}

// What rates are measured under; under noise there are none.
function showUnder(status, about) {
  at("under").hidden = about.budget !== null || status.quality === null;
  write("under", `HR and NDCG are measured under ${status.under_words}`);
  if (about.budget === null) charts.quality.entitle(`${QUALITY}, ${status.under}`);
}

function privacyTile(status, budget) {
  if (budget === null || status.epsilon === null) return tile("Privacy budget", "No noise", "sums are exact, there is no epsilon");
  const spent = status.epsilon / budget.epsilon;
  const sums = words.plural(status.noisy_sums, "noisy sum");
  const about = `δ ${words.delta(budget.delta)}; ${sums}, no user in more than ${budget.rounds_per_user}`;
  return tile("Privacy budget", `ε ${words.epsilon(status.epsilon)} of ${budget.epsilon}`, about, { spent });
}

function showRounds() {
  const points = rounds();
  for (const chart of Object.values(charts)) chart.take(points);
  at("no-rounds").hidden = points.length > 0;
  at("rounds").hidden = points.length === 0;
  const found = best(points, "ndcg");
  const top = found?.round;
  const title = found ? `the highest NDCG on validation items: ${measured(points, found)}` : "";
  const newest = points.reverse();
  const shown = showsAll ? newest : newest.slice(0, SHOWN_ROUNDS);
  at("round-rows").replaceChildren(
    ...shown.map((point) => {
      const row = made("tr", undefined, point.round === top ? "best" : "");
      const round = made("th", String(point.round));
      round.scope = "row";
      if (point.round === top) {
        round.append(made("span", " best", "quiet"));
        round.title = title;
      }
      row.append(
        round,
        made("td", words.KINDS[point.kind] ?? point.kind),
        made("td", String(point.counted), "number wide"),
        made("td", words.rate(point.validation_hr), "number"),
        made("td", words.rate(point.validation_ndcg), "number"),
        made("td", words.loss(point.loss), "number"),
        made("td", words.bytes(point.bytes_received), "number wide"),
        made("td", words.seconds(point.seconds), "number"),
      );
      return row;
    }),
  );
  const button = at("all-rounds");
  button.hidden = points.length <= SHOWN_ROUNDS;
  button.textContent = showsAll ? "Show the newest only" : `Show all ${points.length}`;
}

function showEvents() {
  at("no-events").hidden = known.events.length > 0;
  const newest = known.events.slice(-SHOWN_EVENTS).reverse();
  at("events").replaceChildren(
    ...newest.map((event) => {
      const line = made("li");
      const time = made("time", words.clock(event.unix_seconds));
      time.dateTime = new Date(event.unix_seconds * 1000).toISOString();
      line.append(time, made("span", words.sentence(event), words.mood(event)));
      return line;
    }),
  );
}

function showAbout(about) {
  write("federation", about.federation);
  write("plan", `${about.algorithm}, ${about.update} updates, protection ${about.protection}`);
  write("hr-head", `HR@${about.at}`);
  write("ndcg-head", `NDCG@${about.at}`);
  write("who-reads", about.who_reads);
  write("privacy-words", words.budgetWords(about.budget));
  if (about.budget) for (const chart of [charts.quality, charts.loss]) chart.explain(UNRELEASED);
  charts.quality.curves[0].label = `HR@${about.at}`;
  charts.quality.curves[1].label = `NDCG@${about.at}`;
}

function heard(kind, data) {
  if (kind === "about") {
    known.about = data;
    showAbout(data);
  } else if (kind === "status") {
    known.status = data;
    at("run").hidden = at("locked").hidden ? false : true;
    write("run-name", `run ${data.run}`);
    showNow(data);
    showTiles(data, known.about);
    showMembers(data);
    showUnder(data, known.about);
    if (state !== "live") changed("live");
  } else {
    if (kind === "history") {
      known.rounds.clear();
      known.events = [];
    }
    for (const point of data.rounds) known.rounds.set(point.round, point);
    known.events = known.events.concat(data.events).slice(-KEPT_EVENTS);
    showRounds();
    showEvents();
    const notable = data.events.filter((event) => words.mood(event));
    if (kind === "news" && notable.length) write("announcement", words.sentence(notable[notable.length - 1]));
  }
}

function changed(now, why = "") {
  state = now;
  at("connection").dataset.state = now;
  write("connection", { live: "live", lost: "not connected", locked: "locked" }[now]);
  at("locked").hidden = now !== "locked";
  at("run").hidden = now === "locked" || known.status === null;
  at("run").classList.toggle("stale", now === "lost");
  at("banner").hidden = now !== "lost";
  if (now === "locked") write("locked-why", why);
  if (now === "lost") {
    const since = known.status ? ` What is below is of ${words.clock(known.status.now)}.` : "";
    const over = known.status?.finished ? "The run is over, and the coordinator no longer answers." : "Connection lost, trying again.";
    write("banner", `${over}${since}`);
  }
}

at("all-rounds").addEventListener("click", () => {
  showsAll = !showsAll;
  showRounds();
});

new Feed(heard, changed).begin();
