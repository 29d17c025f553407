// A scrolled piece of a log: bytes in, lines on the page. Keeps a bounded number of lines and knows at which byte the
// first of them begins, so that what it let go of can be fetched again; stays at the end only while the reader is there.

import { el, fill, listen } from "../shared/dom.js";
import { bytes } from "../shared/format.js";
import { say } from "../shared/top.js";
import { Lines, Painter } from "./terminal.js";

// At the end: enough to look back, few enough to stay quick. Further up: what a reader has asked for himself.
const LINES_AT_END = 5000;
const LINES_READING = 20_000;
const NEAR_END_PX = 24;

export class Scroll {
  wraps = true;
  #box = el("div", {
    class: "log wrap",
    tabindex: "0",
    role: "log",
    "aria-live": "off",
    "aria-label": "Log",
  });
  #foot = el("div", { class: "log-foot" });
  #pending = el("div", { class: "log-line log-pending" });
  #lines = new Lines();
  #painter = new Painter();
  // Byte offset of the first line shown, and the bytes that each line shown stands for.
  #start = 0;
  #sizes = [];
  #waiting = [];
  #atEnd = true;
  #words = "";
  #over = false;
  #fetch;
  #fetching = false;

  /** `fetch(end)` brings `{offset, bytes}`: whole lines before byte `end`. */
  constructor(host, fetch) {
    this.#fetch = fetch;
    host.append(this.#box, this.#foot);
    this.#box.append(this.#pending);
    this.#box.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.#keepAtEnd()).observe(this.#box);
    listen(host, { end: () => this.#toEnd(), earlier: () => this.#earlier() });
  }

  /** Another stream is to be shown. */
  clear() {
    this.#lines = new Lines();
    this.#painter = new Painter();
    this.#waiting = [];
    this.#sizes = [];
    this.#start = 0;
    this.#atEnd = true;
    this.#words = "";
    this.#pending.replaceChildren();
    this.#box.replaceChildren(this.#pending);
    this.#drawFoot();
  }

  /** The first byte to come has this offset. */
  begin(offset) {
    this.#start = offset;
    this.#drawFoot();
  }

  /** The next bytes of the stream. */
  add(piece) {
    const first = this.#waiting.length === 0;
    this.#waiting.push(...this.#lines.push(piece), null);
    this.#bound();
    if (first) requestAnimationFrame(() => this.#flush());
  }

  /** A word about the link. */
  say(words) {
    this.#words = words;
    this.#drawFoot();
  }

  /** Whether nothing more will be written. */
  over(yes) {
    if (yes === this.#over) return;
    this.#over = yes;
    this.#drawFoot();
  }

  /** Whether long lines are wrapped. */
  wrap(yes) {
    this.wraps = yes;
    this.#box.classList.toggle("wrap", yes);
    this.#keepAtEnd();
  }

  /** A hidden page draws nothing for a long time: what waits is bounded like what is shown. */
  #bound() {
    if (this.#waiting.length < 2 * LINES_AT_END) return;
    for (const line of this.#waiting.splice(0, this.#waiting.length - LINES_AT_END)) {
      if (line === null) continue;
      // What is shown is older still, and would leave a gap.
      this.#drop(this.#sizes.length);
      this.#start += line.size;
    }
  }

  #flush() {
    const ready = this.#waiting.filter((line) => line !== null);
    this.#waiting = [];
    this.#box.insertBefore(this.#drawn(ready, this.#painter), this.#pending);
    for (const line of ready) this.#sizes.push(line.size);
    // A painter of its own: the unfinished line must not leave its colours on.
    this.#pending.replaceChildren(...pieces(new Painter(), this.#lines.pending));
    this.#drop(this.#sizes.length - (this.#atEnd ? LINES_AT_END : LINES_READING));
    this.#drawFoot();
    this.#keepAtEnd();
  }

  #keepAtEnd() {
    if (this.#atEnd) this.#box.scrollTop = this.#box.scrollHeight;
  }

  #drawn(lines, painter) {
    const fresh = document.createDocumentFragment();
    for (const { text } of lines) fresh.append(el("div", { class: "log-line" }, pieces(painter, text)));
    return fresh;
  }

  /** Let go of the first `many` lines. */
  #drop(many) {
    if (many <= 0) return;
    for (const size of this.#sizes.splice(0, many)) this.#start += size;
    for (let gone = 0; gone < many; gone += 1) this.#box.firstElementChild.remove();
  }

  async #earlier() {
    if (this.#fetching) return;
    this.#fetching = true;
    const lines = this.#lines;
    try {
      const { offset, bytes: before } = await this.#fetch(this.#start);
      // The reader has turned to another stream meanwhile.
      if (lines !== this.#lines) return;
      this.#prepend(offset, before);
    } catch (problem) {
      say(problem);
    } finally {
      this.#fetching = false;
      this.#drawFoot();
    }
  }

  #prepend(offset, before) {
    const found = new Lines().push(before);
    const height = this.#box.scrollHeight;
    this.#atEnd = false;
    this.#box.prepend(this.#drawn(found, new Painter()));
    this.#sizes.unshift(...found.map((line) => line.size));
    this.#start = offset;
    // The seam between new and old stands in the middle.
    this.#box.scrollTop = this.#box.scrollHeight - height - this.#box.clientHeight / 2;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#box;
    const atEnd = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    if (atEnd === this.#atEnd) return;
    this.#atEnd = atEnd;
    this.#drawFoot();
  }

  #toEnd() {
    this.#atEnd = true;
    this.#keepAtEnd();
    this.#drawFoot();
  }

  #drawFoot() {
    const empty = this.#sizes.length === 0 && this.#lines.pending === "";
    const more = this.#start > 0 && this.#sizes.length < LINES_READING - LINES_AT_END;
    this.#box.classList.toggle("log-empty", empty);
    fill(
      this.#foot,
      more &&
        el(
          "button",
          { class: "button small", type: "button", "data-do": "earlier", key: "earlier" },
          `Earlier (${bytes(this.#start)} more)`,
        ),
      el(
        "span",
        { class: "muted small grow", key: "words" },
        empty ? `${this.#over ? "Nothing was written here." : "Nothing has been written yet."} ${this.#words}` : this.#words,
      ),
      !this.#atEnd &&
        el(
          "button",
          { class: "button small", type: "button", "data-do": "end", key: "end" },
          "Jump to the end",
        ),
    );
  }
}

function pieces(painter, line) {
  return painter
    .paint(line)
    .map(({ text, classes }) => (classes ? el("span", { class: classes }, text) : text));
}
