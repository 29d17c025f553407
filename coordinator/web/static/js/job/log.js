// The live log of one rank: which rank and which stream are the reader's choice (by itself it shows the stream of
// the stage that is running). Follows by a streamed response, goes on where it was after a broken link, keeps a
// bounded number of lines, and stays at the end only while the reader is there.

import { el, fill, listen, plain } from "../shared/dom.js";
import { bytes } from "../shared/format.js";
import { api } from "../shared/site.js";
import { Feed } from "./feed.js";
import { Lines, Painter } from "./terminal.js";

// What a page shows at once: enough to scroll through, few enough to stay quick.
const MOST_LINES = 5000;
const NAMES = { "prepare.log": "Prepare", "train.log": "Train", "compare.log": "Compare" };
const NEAR_END_PX = 24;

/** The stream that the job's stage writes. */
function current(job) {
  if (job.stage === "prepare") return "prepare.log";
  return job.stage === "compare" && job.state !== "succeeded" ? "compare.log" : "train.log";
}

export class LogView {
  #id;
  #box;
  #tools;
  #foot;
  #pending = el("div", { class: "log-line log-pending" });
  #chosen = { rank: 0, stream: null };
  #feed = null;
  #source = "";
  #lines = new Lines();
  #painter = new Painter();
  #atEnd = true;
  #wrap = true;
  #waiting = [];
  #job = null;
  #attempt = null;
  #note = "";

  constructor(host, tools, id) {
    this.#id = id;
    this.#tools = tools;
    this.#box = el("div", { class: "log wrap", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Log" });
    this.#foot = el("div", { class: "log-foot" });
    host.append(this.#box, this.#foot);
    this.#box.append(this.#pending);
    this.#box.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    tools.addEventListener("change", (event) => this.#choose(event.target));
    listen(tools, { wrap: () => this.#setWrap(!this.#wrap) });
    listen(host, {
      end: () => this.#toEnd(),
      earlier: () => this.#earlier(),
    });
  }

  /** The job has changed: follow what is chosen of this attempt. */
  follow(job, attempt) {
    this.#job = job;
    this.#attempt = attempt;
    const stream = this.#chosen.stream ?? current(job);
    const source = attempt ? `${attempt.number}/${this.#chosen.rank}/${stream}` : "";
    const running = attempt !== null && attempt.state !== "ended";
    if (source !== this.#source) {
      this.#source = source;
      this.#restart(source === "" ? null : stream, running);
    }
    this.#feed?.running(running);
    this.#draw(stream);
  }

  #restart(stream, running) {
    this.#feed?.end();
    this.#feed = null;
    this.#lines = new Lines();
    this.#painter = new Painter();
    this.#waiting = [];
    this.#box.replaceChildren(this.#pending);
    this.#pending.replaceChildren();
    this.#atEnd = true;
    this.#note = "";
    if (stream === null) return;
    this.#feed = new Feed(
      (query) => api(`jobs/${encodeURIComponent(this.#id)}/logs`, { rank: this.#chosen.rank, stream, attempt: this.#attempt.number, ...query }),
      { text: (text) => this.#take(text), state: (note) => this.#noted(note), running },
    );
  }

  #take(text) {
    const first = this.#waiting.length === 0;
    // An animation frame may be far away in a hidden tab: what waits is bounded, too.
    this.#waiting.push(...this.#lines.push(text));
    if (this.#waiting.length > MOST_LINES) this.#waiting.splice(0, this.#waiting.length - MOST_LINES);
    if (first) requestAnimationFrame(() => this.#flush());
  }

  #flush() {
    const fresh = document.createDocumentFragment();
    for (const line of this.#waiting) fresh.append(this.#line(line));
    this.#waiting = [];
    this.#box.insertBefore(fresh, this.#pending);
    // A painter of its own: the unfinished line must not leave its colours on.
    this.#pending.replaceChildren(...pieces(new Painter(), this.#lines.pending));
    let over = this.#box.childElementCount - MOST_LINES;
    // While somebody reads further up, lines are not pulled away under him, up to a second bound.
    if (!this.#atEnd && over < MOST_LINES) over = 0;
    for (; over > 0; over -= 1) this.#box.firstElementChild.remove();
    if (this.#atEnd) this.#box.scrollTop = this.#box.scrollHeight;
    this.#drawFoot();
  }

  #line(text, painter = this.#painter) {
    return el("div", { class: "log-line" }, pieces(painter, text));
  }

  #noted(note) {
    this.#note = note;
    this.#drawFoot();
  }

  async #earlier() {
    const text = await this.#feed?.earlier();
    if (!text) return this.#drawFoot();
    const lines = new Lines();
    const painter = new Painter();
    const fresh = document.createDocumentFragment();
    for (const line of lines.push(text)) fresh.append(this.#line(line, painter));
    const before = this.#box.scrollHeight;
    this.#atEnd = false;
    this.#box.prepend(fresh);
    this.#box.scrollTop += this.#box.scrollHeight - before;
    return this.#drawFoot();
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#box;
    const atEnd = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    if (atEnd !== this.#atEnd) {
      this.#atEnd = atEnd;
      this.#drawFoot();
    }
  }

  #toEnd() {
    this.#atEnd = true;
    this.#box.scrollTop = this.#box.scrollHeight;
    this.#drawFoot();
  }

  #setWrap(wrap) {
    this.#wrap = wrap;
    this.#box.classList.toggle("wrap", wrap);
    this.follow(this.#job, this.#attempt);
  }

  #choose(field) {
    if (field.name === "rank") this.#chosen.rank = Number(field.value);
    if (field.name === "stream") this.#chosen.stream = field.value === "" ? null : field.value;
    this.follow(this.#job, this.#attempt);
  }

  #draw(stream) {
    const members = [...(this.#attempt?.members ?? [])].sort((a, b) => a.rank - b.rank);
    const automatic = `Current (${(NAMES[current(this.#job)] ?? current(this.#job)).toLowerCase()})`;
    const download = api(`jobs/${encodeURIComponent(this.#id)}/logs`, { rank: this.#chosen.rank, stream, attempt: this.#attempt?.number });
    fill(
      this.#tools,
      select("Rank", "rank", this.#chosen.rank, members.map((member) => [member.rank, `rank ${member.rank} · ${plain(member.hostname || member.replica_id)}`])),
      select("Stream", "stream", this.#chosen.stream ?? "", [["", automatic], ...Object.entries(NAMES)]),
      el("button", { class: "button small", type: "button", "data-do": "wrap", "aria-pressed": String(this.#wrap) }, "Wrap"),
      this.#attempt && el("a", { class: "button small", href: download.pathname + download.search, download: `${this.#id}-rank${this.#chosen.rank}-${stream}`, key: "whole" }, "Whole log"),
    );
  }

  #drawFoot() {
    const feed = this.#feed;
    const words = feed === null ? "The log begins with the first attempt." : feed.size === 0 && this.#note === "" ? "Nothing has been written yet." : this.#note;
    fill(
      this.#foot,
      feed !== null && feed.start > 0 && el("button", { class: "button small", type: "button", "data-do": "earlier", key: "earlier" }, `Earlier (${bytes(feed.start)} more)`),
      el("span", { class: "muted small grow" }, words),
      !this.#atEnd && el("button", { class: "button small", type: "button", "data-do": "end", key: "end" }, "Jump to the end"),
    );
  }
}

function pieces(painter, line) {
  return painter.paint(line).map(({ text, classes }) => (classes ? el("span", { class: classes }, text) : text));
}

function select(label, name, value, options) {
  if (options.length === 0) return null;
  return el(
    "label",
    { class: "select", key: name },
    el("span", { class: "visually-hidden" }, label),
    el("select", { name }, options.map(([key, words]) => el("option", { value: key, selected: String(key) === String(value) }, words))),
  );
}
