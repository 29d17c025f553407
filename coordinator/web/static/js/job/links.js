// The links between an attempt's replicas: a table of who reaches whom and how well. Rows ask, columns answer.
// Above sixteen replicas the worst links are listed first. One cell of the table is in the tab order; the arrow
// keys walk from it to the others, and a line below says in words what the cell under the cursor means.

import { read } from "../shared/api.js";
import { el, fill, icon, plain } from "../shared/dom.js";
import { bytes, count, duration, plural } from "../shared/format.js";

const MATRIX_UP_TO = 16;
const WORST = 50;
const AGAIN_MS = 2000;
// Below that a clock's offset is as much the report's way as the clock.
const CLOCK_S = 0.5;

const ROUNDS = {
  within: "each within itself",
  all: "all at once",
  groups: "in groups, to find the fault",
  confirming: "all once more",
};
const rate = (value) => (value ? `${bytes(value)}/s` : "");

export class Links {
  #job;
  #section;
  #table;
  #words;
  #more;
  #sum;
  #known = null;
  #grid = null;
  #asking = false;
  #at = "";

  /** `place(name)` finds an element of the page; `job` is the job's id. */
  constructor(place, job) {
    this.#job = job;
    this.#section = place("links-section");
    this.#table = place("links");
    this.#words = place("link-words");
    this.#more = place("links-more");
    this.#sum = place("links-sum");
    this.#table.addEventListener("keydown", (event) => this.#walk(event));
    this.#table.addEventListener("focusin", (event) => this.#say(event.target.closest("[data-link]")));
    this.#table.addEventListener("pointerover", (event) => this.#say(event.target.closest("[data-link]")));
  }

  /** Show the links of `attempt` (null: none), asking for them when its handshake has moved on. */
  follow(attempt) {
    const stage = (name) => attempt?.stages.find((one) => one.stage === name);
    const tcp = stage("tcp");
    if (!attempt || !tcp || tcp.state === "waiting") {
      this.#section.hidden = true;
      this.#known = null;
      return;
    }
    const collective = stage("collective");
    const moves = attempt.state === "active" && (tcp.state === "running" || collective?.state === "running");
    const beat = moves ? Math.floor(Date.now() / AGAIN_MS) : "";
    const wanted = [attempt.id, tcp.state, tcp.ended_at, collective?.state, attempt.state, beat].join(" ");
    if (wanted !== this.#known && !this.#asking) this.#ask(attempt, wanted);
  }

  async #ask(attempt, wanted) {
    this.#asking = true;
    try {
      const worst = attempt.members.length > MATRIX_UP_TO ? WORST : null;
      this.#grid = await read(`jobs/${encodeURIComponent(this.#job)}/links`, {
        attempt: attempt.number,
        worst,
      });
      this.#known = wanted;
      this.#draw();
    } catch {
      // The live stream shows the state of the link to the coordinator; the next change asks again.
    }
    this.#asking = false;
  }

  #draw() {
    const grid = this.#grid;
    this.#section.hidden = grid.links.length === 0;
    if (grid.links.length === 0) return;
    const cells = grid.links.map(keyOf);
    if (!cells.includes(this.#at)) this.#at = cells[0];
    fill(this.#sum, sum(grid));
    fill(
      this.#table,
      grid.replicas.length > MATRIX_UP_TO ? list(grid, this.#at) : matrix(grid, this.#at),
    );
    fill(this.#more, addresses(grid), rounds(grid));
    this.#write();
  }

  #walk(event) {
    const cell = event.target.closest("td, th[tabindex]");
    const row = cell?.parentElement;
    if (!row) return;
    const rows = [...this.#table.querySelectorAll("tbody tr")];
    const walkable = (one) => [...one.querySelectorAll("[tabindex]")];
    const [line, column] = [rows.indexOf(row), walkable(row).indexOf(cell)];
    const to = {
      ArrowUp: () => walkable(rows[line - 1] ?? row)[column],
      ArrowDown: () => walkable(rows[line + 1] ?? row)[column],
      ArrowLeft: () => walkable(row)[column - 1],
      ArrowRight: () => walkable(row)[column + 1],
      Home: () => walkable(event.ctrlKey ? rows[0] : row)[0],
      End: () => walkable(event.ctrlKey ? rows.at(-1) : row).at(-1),
    }[event.key]?.();
    if (!to) return;
    event.preventDefault();
    cell.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
    to.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  #say(cell) {
    if (!cell) return;
    this.#at = cell.dataset.link;
    this.#write();
  }

  #write() {
    const link = this.#grid.links.find((one) => keyOf(one) === this.#at);
    fill(this.#words, link ? plain(sentence(link, this.#grid)) : name(this.#grid, Number(this.#at)));
  }
}

const keyOf = (link) => `${link.source} ${link.target}`;

function end(grid, rank) {
  return grid.replicas.find((replica) => replica.rank === rank);
}

function name(grid, rank) {
  const replica = end(grid, rank);
  return replica ? `rank ${rank} (${plain(replica.hostname || replica.replica_id)})` : "";
}

function sentence(link, grid) {
  const to = end(grid, link.target);
  const where = to?.address ? ` at ${to.address}${to.interface ? ` on ${to.interface}` : ""}` : "";
  const way = `From ${name(grid, link.source)} to ${name(grid, link.target)}${where}: `;
  if (link.state === "unknown") return `${way}${link.error || "not tested yet"}.`;
  if (link.state === "failed") {
    const blame = link.at_fault ? "" : " (its answers are lost on the other direction)";
    return `${way}${link.error || link.fault}${blame}.`;
  }
  const parts = [
    link.rtt_s !== null && `round trip ${duration(link.rtt_s)}`,
    link.bytes_per_s && `${rate(link.bytes_per_s)} there`,
    link.return_bytes_per_s && `${rate(link.return_bytes_per_s)} back`,
    link.tries > 1 && "only at the second try",
  ].filter(Boolean);
  return `${way}${parts.join(", ") || "echoed"}.`;
}

function sum(grid) {
  const { good, failed: bad, untested: open } = grid;
  const all = good + bad + open;
  const words = [
    `${plural(all, "link")}`,
    bad > 0 && `${count(bad)} failed`,
    open > 0 && `${count(open)} not tested`,
    bad + open === 0 && "all good",
  ];
  return el("span", { class: bad > 0 ? "bad small" : "muted small" }, words.filter(Boolean).join(", "));
}

/** What a cell shows: a figure, or a mark and the fault in a word. */
function shown(link) {
  if (link.state === "unknown") return "?";
  if (link.state === "failed") {
    return [icon("failed"), el("span", {}, plain(link.fault.replaceAll("_", " ") || "failed"))];
  }
  return [
    el("span", {}, link.rtt_s === null ? "ok" : duration(link.rtt_s)),
    link.bytes_per_s && el("span", { class: "link-rate" }, rate(link.bytes_per_s)),
  ];
}

function stateOf(link) {
  if (link.state === "ok" && link.tries > 1) return "shaky";
  return link.state === "failed" && !link.at_fault ? "answer" : link.state;
}

function matrix(grid, at) {
  const links = new Map(grid.links.map((link) => [keyOf(link), link]));
  const ranks = grid.replicas.map((replica) => replica.rank);
  const heading = (rank, scope) =>
    el("th", { scope, title: name(grid, rank), key: `${scope}${rank}` }, `rank ${rank}`);
  const cell = (source, target) => {
    const key = `${source} ${target}`;
    const link = links.get(key);
    if (!link) return el("td", { class: "link-self", key }, source === target ? "·" : "?");
    return el(
      "td",
      { key, "data-link": key, "data-state": stateOf(link), tabindex: key === at ? 0 : -1 },
      shown(link),
    );
  };
  return el(
    "table",
    { class: "links", role: "grid", "aria-describedby": "link-words" },
    el("caption", { class: "visually-hidden" }, "Links between the replicas: rows ask, columns answer"),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col" }, "from ↓ to →"),
        ranks.map((rank) => heading(rank, "col")),
      ),
    ),
    el(
      "tbody",
      {},
      ranks.map((source) =>
        el(
          "tr",
          { key: `row${source}` },
          heading(source, "row"),
          ranks.map((target) => cell(source, target)),
        ),
      ),
    ),
  );
}

function list(grid, at) {
  const row = (link) => {
    const key = keyOf(link);
    const columns = [
      name(grid, link.source),
      name(grid, link.target),
      link.rtt_s === null ? "–" : duration(link.rtt_s),
      rate(link.bytes_per_s) || "–",
      rate(link.return_bytes_per_s) || "–",
    ];
    return el(
      "tr",
      { key },
      el(
        "td",
        { "data-link": key, "data-state": stateOf(link), tabindex: key === at ? 0 : -1 },
        link.state === "ok" ? (link.tries > 1 ? "second try" : "ok") : shown(link),
      ),
      columns.map((text) => el("td", { "data-link": key, tabindex: -1 }, text)),
    );
  };
  return el(
    "table",
    { class: "links listed", role: "grid", "aria-describedby": "link-words" },
    el("caption", {}, `The worst ${count(grid.links.length)} links, the worst first`),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        ["State", "From", "To", "Round trip", "There", "Back"].map((text) => el("th", { scope: "col" }, text)),
      ),
    ),
    el("tbody", {}, grid.links.map(row)),
  );
}

function addresses(grid) {
  const offer = (one) =>
    `${one.address} on ${one.interface || "?"}: ${one.used ? "used, " : ""}reached by ${one.reached_by} of ${one.tried_by}`;
  const clock = (replica) =>
    replica.clock_offset_s === null || Math.abs(replica.clock_offset_s) < CLOCK_S
      ? null
      : `clock ${duration(Math.abs(replica.clock_offset_s))} ${replica.clock_offset_s > 0 ? "ahead" : "behind"}`;
  return el(
    "details",
    { class: "link-ends" },
    el("summary", {}, "Addresses"),
    el(
      "dl",
      { class: "pairs" },
      grid.replicas.map((replica) => [
        el("dt", {}, name(grid, replica.rank)),
        el("dd", {}, plain([...replica.offers.map(offer), clock(replica)].filter(Boolean).join("; "))),
      ]),
    ),
  );
}

function rounds(grid) {
  if (grid.rounds.length < 2 && grid.rounds.every((round) => round.groups.every((group) => group.passed))) {
    return null;
  }
  const words = { true: "passed", false: "failed", null: "running" };
  const group = (one) => `${one.ranks.length > 1 ? "ranks" : "rank"} ${one.ranks.join(", ")}: ${words[one.passed]}`;
  return el(
    "ol",
    { class: "rounds" },
    grid.rounds.map((round) =>
      el(
        "li",
        { key: `round${round.number}` },
        el("span", { class: "strong" }, `Round ${round.number}, ${ROUNDS[round.kind]}`),
        el(
          "ul",
          {},
          round.groups.map((one) =>
            el("li", { class: one.passed === false ? "bad" : "muted" }, group(one)),
          ),
        ),
      ),
    ),
  );
}
