// The bytes of one stream of one rank: begins near the end, follows what is appended, asks again from the exact
// offset after a broken link, and fetches what came earlier on demand.

import { ask } from "../shared/api.js";
import { whileSeen } from "../shared/live.js";

// What is shown at first, and each time something earlier is asked for.
const WINDOW_BYTES = 256 * 1024;
// Within so many bytes a line begins, or else the window begins in the middle of one.
const LINE_BYTES = 16 * 1024;
const AGAIN_MS = 1500;

/** Where in `bytes` the next line begins. */
function lineStart(bytes) {
  return bytes.indexOf(10) + 1;
}

export class Feed {
  #url;
  #on;
  #next = null;
  #running;
  #ended = false;
  #seen = true;
  #request = new AbortController();
  #wake = () => {};
  #unwatch;

  /**
   * `url(query)` is the address of the stream. `on.begin` gets the offset of the first byte, `on.bytes` the bytes in
   * their order, `on.state` a word about the link ("" when there is nothing to say); `running`: whether more may come.
   */
  constructor(url, on, running) {
    this.#url = url;
    this.#on = on;
    this.#running = running;
    this.#unwatch = whileSeen({ hidden: () => this.#rest(), seen: () => this.#resume() });
    this.#follow();
  }

  /** Whether more may come. */
  running(yes) {
    const ends = this.#running && !yes;
    this.#running = yes;
    if (ends) this.#wake();
  }

  /** Stop; nothing is delivered any more. */
  end() {
    this.#ended = true;
    this.#unwatch();
    this.#request.abort();
    this.#wake();
  }

  /** Whole lines before byte `end`: `{offset, bytes}`. */
  async earlier(end) {
    const from = Math.max(0, end - WINDOW_BYTES);
    const bytes = await this.#page({ offset: from, limit: end - from });
    const skipped = from === 0 ? 0 : lineStart(bytes);
    return { offset: from + skipped, bytes: bytes.subarray(skipped) };
  }

  #rest() {
    this.#seen = false;
    this.#request.abort();
  }

  #resume() {
    this.#seen = true;
    this.#wake();
  }

  async #follow() {
    while (!this.#ended) {
      // Read before asking: once nothing runs any more, one more look has everything.
      const last = !this.#running;
      try {
        this.#request = new AbortController();
        if (this.#next === null) await this.#begin();
        const caughtUp = await this.#read(!last);
        if (last && caughtUp) {
          this.#said("");
          return;
        }
        if (!caughtUp) continue;
      } catch {
        this.#said(this.#seen ? "reconnecting…" : "");
      }
      await this.#pause();
    }
  }

  #said(words) {
    if (!this.#ended) this.#on.state(words);
  }

  async #page(query) {
    const response = await ask(this.#url(query), { signal: this.#request.signal });
    return new Uint8Array(await response.arrayBuffer());
  }

  /** Begin a window before the end, at the start of a line. */
  async #begin() {
    const response = await ask(this.#url({ offset: -WINDOW_BYTES, limit: LINE_BYTES }), {
      signal: this.#request.signal,
    });
    const bytes = new Uint8Array(await response.arrayBuffer());
    const offset = Number(response.headers.get("x-rankcall-offset") ?? 0);
    this.#next = offset === 0 ? 0 : offset + lineStart(bytes);
    if (!this.#ended) this.#on.begin(this.#next);
  }

  /** Deliver what comes; whether that was all there was. */
  async #read(follow) {
    const response = await ask(this.#url({ offset: this.#next, follow: follow ? 1 : null }), {
      signal: this.#request.signal,
    });
    const goal = Number(response.headers.get("x-rankcall-size") ?? 0);
    const before = this.#next;
    this.#said(follow ? "following" : "");
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (this.#ended) return true;
      if (done) break;
      this.#next += value.byteLength;
      this.#on.bytes(value);
    }
    // An answer may be a page of what there is.
    return this.#next >= goal || this.#next === before;
  }

  async #pause() {
    let timer = null;
    await new Promise((resolve) => {
      this.#wake = resolve;
      if (this.#seen) timer = setTimeout(resolve, AGAIN_MS);
    });
    clearTimeout(timer);
    this.#wake = () => {};
  }
}
