// The live log of one rank: which rank and which stream are the reader's choice (by itself it shows the stream of
// the stage that is running). The text itself is in scroll.js; here it is decided what it shows.

import { el, fill, listen, plain } from "../shared/dom.js";
import { api } from "../shared/site.js";
import { Feed } from "./feed.js";
import { blamed } from "./findings.js";
import { Scroll } from "./scroll.js";

const NAMES = { "prepare.log": "Prepare", "train.log": "Train", "compare.log": "Compare" };

/** The stream that the attempt's stage writes, or wrote when it failed. */
function current(job, attempt) {
  const here = attempt.stages.findLast((stage) => ["running", "failed"].includes(stage.state))?.stage;
  const stage = here ?? job.stage;
  if (stage === "prepare") return "prepare.log";
  return stage === "compare" && job.state === "running" ? "compare.log" : "train.log";
}

export class LogView {
  #id;
  #tools;
  #scroll;
  #feed = null;
  #source = "";
  // null: rank 0, or the one that is to blame.
  #chosen = null;
  #stream = null;
  #job = null;
  #attempt = null;

  constructor(host, tools, id) {
    this.#id = id;
    this.#tools = tools;
    this.#scroll = new Scroll(host, (end) => this.#feed.earlier(end));
    tools.addEventListener("change", (event) => this.#choose(event.target));
    listen(tools, {
      wrap: () => {
        this.#scroll.wrap(!this.#scroll.wraps);
        this.#draw();
      },
    });
  }

  /** The job has changed: follow what is chosen of this attempt (null: there is none yet). */
  follow(job, attempt) {
    this.#job = job;
    this.#attempt = attempt;
    if (attempt === null) return;
    // The rank may have been chosen in an attempt with more of them.
    if (!attempt.members.some((member) => member.rank === this.#chosen)) this.#chosen = null;
    const running = attempt.state !== "ended";
    const source = `${attempt.number}/${this.#rank}/${this.#shown}`;
    if (source !== this.#source) {
      this.#source = source;
      this.#restart(running);
    }
    this.#feed.running(running);
    this.#scroll.over(!running);
    this.#draw();
  }

  get #rank() {
    const failed = this.#attempt.outcome === "failed";
    return this.#chosen ?? (failed ? blamed(this.#job, this.#attempt) : null) ?? 0;
  }

  get #shown() {
    return this.#stream ?? current(this.#job, this.#attempt);
  }

  #url(query) {
    const which = { rank: this.#rank, stream: this.#shown, attempt: this.#attempt.number };
    return api(`jobs/${encodeURIComponent(this.#id)}/logs`, { ...which, ...query });
  }

  #restart(running) {
    this.#feed?.end();
    const scroll = this.#scroll;
    const fixed = this.#url({});
    const url = (query) => {
      const address = new URL(fixed);
      for (const [name, value] of Object.entries(query)) {
        if (value !== null) address.searchParams.set(name, value);
      }
      return address;
    };
    scroll.clear();
    const on = {
      begin: (offset) => scroll.begin(offset),
      bytes: (bytes) => scroll.add(bytes),
      state: (words) => scroll.say(words),
    };
    this.#feed = new Feed(url, on, running);
  }

  #choose(field) {
    if (field.name === "rank") this.#chosen = Number(field.value);
    if (field.name === "stream") this.#stream = field.value === "" ? null : field.value;
    this.follow(this.#job, this.#attempt);
  }

  #draw() {
    const members = [...this.#attempt.members].sort((a, b) => a.rank - b.rank);
    const ranks = members.map((member) => [
      member.rank,
      `rank ${member.rank} · ${plain(member.hostname || member.replica_id)}`,
    ]);
    const automatic = `Current (${NAMES[current(this.#job, this.#attempt)].toLowerCase()})`;
    const whole = this.#url({});
    fill(
      this.#tools,
      select("Rank", "rank", this.#rank, ranks),
      select("Stream", "stream", this.#stream ?? "", [["", automatic], ...Object.entries(NAMES)]),
      el(
        "button",
        {
          class: "button small",
          type: "button",
          "data-do": "wrap",
          "aria-pressed": String(this.#scroll.wraps),
        },
        "Wrap",
      ),
      el(
        "a",
        {
          class: "button small",
          href: whole.pathname + whole.search,
          download: `${this.#id}-rank${this.#rank}-${this.#shown}`,
        },
        "Whole log",
      ),
    );
  }
}

function select(label, name, value, options) {
  return el(
    "span",
    { class: "select", key: name },
    el(
      "select",
      { name, "aria-label": label },
      options.map(([key, words]) =>
        el("option", { value: key, selected: String(key) === String(value) }, words),
      ),
    ),
  );
}
