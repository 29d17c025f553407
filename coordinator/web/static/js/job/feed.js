// The bytes of one stream of one rank, as text: begins near the end, follows what is appended, asks again from the
// exact offset after a broken link, and fetches what came earlier on demand.

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
  /** Offset of the first byte shown, and of the next one to come. */
  start = 0;
  size = 0;
  #url;
  #on;
  #running;
  #ended = false;
  #seen = true;
  #request = new AbortController();
  #wake = () => {};
  #unwatch;

  /**
   * `url(query)` is the address of the stream. `on.text` gets text in order, `on.state` a word about the link ("" when
   * all is well); `on.running`: whether more may come.
   */
  constructor(url, on) {
    this.#url = url;
    this.#on = on;
    this.#running = on.running;
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

  #rest() {
    this.#seen = false;
    this.#request.abort();
  }

  #resume() {
    this.#seen = true;
    this.#wake();
  }

  async #follow() {
    let decoder = null;
    while (!this.#ended) {
      // Read before asking: once nothing runs any more, one more look has everything.
      const last = !this.#running;
      try {
        this.#request = new AbortController();
        if (decoder === null) {
          await this.#begin();
          decoder = new TextDecoder();
        }
        const caughtUp = await this.#read(decoder, !last);
        if (last && caughtUp) {
          this.#said("");
          return;
        }
        if (!caughtUp) continue;
      } catch (problem) {
        // 404: this stream has not been written to.
        if (last && problem.status === 404) return;
        this.#said(problem.status === 404 || !this.#seen ? "" : "reconnecting…");
      }
      await this.#pause();
    }
  }

  #said(words) {
    if (!this.#ended) this.#on.state(words);
  }

  async #bytes(query) {
    const response = await ask(this.#url(query), { signal: this.#request.signal });
    return { response, bytes: new Uint8Array(await response.arrayBuffer()) };
  }

  /** Begin a window before the end, at the start of a line. */
  async #begin() {
    const { response, bytes } = await this.#bytes({ offset: -WINDOW_BYTES, limit: LINE_BYTES });
    const offset = Number(response.headers.get("x-rankcall-offset") ?? 0);
    this.start = offset === 0 ? 0 : offset + lineStart(bytes);
    this.size = this.start;
  }

  /** Deliver what comes; whether that was all there was. */
  async #read(decoder, follow) {
    const response = await ask(this.#url({ offset: this.size, follow: follow ? 1 : null }), { signal: this.#request.signal });
    const goal = Number(response.headers.get("x-rankcall-size") ?? 0);
    const before = this.size;
    this.#said(follow ? "following" : "");
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (this.#ended) return true;
      if (done) break;
      this.size += value.byteLength;
      this.#on.text(decoder.decode(value, { stream: true }));
    }
    // An answer may be a page of what there is.
    return this.size >= goal || this.size === before;
  }

  /** The text before what is shown; "" when there is none. */
  async earlier() {
    if (this.start === 0) return "";
    const from = Math.max(0, this.start - WINDOW_BYTES);
    try {
      const offset = from === 0 ? 0 : from + lineStart((await this.#bytes({ offset: from, limit: LINE_BYTES })).bytes);
      const { bytes } = await this.#bytes({ offset, limit: this.start - offset });
      this.start = offset;
      return new TextDecoder().decode(bytes);
    } catch {
      return "";
    }
  }

  async #pause() {
    const timer = { id: 0 };
    await new Promise((resolve) => {
      this.#wake = resolve;
      if (this.#seen) timer.id = setTimeout(resolve, AGAIN_MS);
    });
    clearTimeout(timer.id);
    this.#wake = () => {};
  }
}
