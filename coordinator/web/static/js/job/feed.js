// The bytes of one stream of one rank, as text: begins near the end, follows what is appended, asks again from the
// exact offset after a broken link, and fetches what came earlier on demand.

import { ask } from "../shared/api.js";

// What is shown at first, and each time something earlier is asked for.
const WINDOW_BYTES = 256 * 1024;
const AGAIN_MS = 1500;

export class Feed {
  /** Offset of the first byte shown, and of the next one to come. */
  start = 0;
  size = 0;
  #url;
  #on;
  #abort = new AbortController();
  #running;
  #wake = () => {};

  /**
   * `url(query)` is the address of the stream. `on.text` gets text in order, `on.state` a word about the link ("" when
   * all is well); `on.running`: whether more may come.
   */
  constructor(url, on) {
    this.#url = url;
    this.#on = on;
    this.#running = on.running;
    this.#follow();
  }

  /** Whether more may come. */
  running(yes) {
    if (this.#running && !yes) this.#wake();
    this.#running = yes;
  }

  /** Stop; nothing is delivered any more. */
  end() {
    this.#abort.abort();
    this.#wake();
  }

  async #follow() {
    const { signal } = this.#abort;
    let decoder = null;
    while (!signal.aborted) {
      const last = !this.#running;
      try {
        if (decoder === null) {
          await this.#begin();
          decoder = new TextDecoder();
        }
        await this.#read(decoder, !last);
        this.#on.state(last ? "" : this.#running ? "following" : "");
        if (last) return;
      } catch (problem) {
        if (signal.aborted) return;
        // 404: the stream does not exist yet.
        this.#on.state(problem.status === 404 ? "" : "reconnecting…");
        if (last && problem.status === 404) return;
      }
      await this.#pause();
    }
  }

  /** Learn the size and choose where to begin: at the start of a line. */
  async #begin() {
    const { signal } = this.#abort;
    const response = await ask(this.#url({ offset: 0, limit: 1 }), { signal });
    const size = Number(response.headers.get("x-rankcall-size") ?? 0);
    await response.body?.cancel();
    this.start = Math.max(0, size - WINDOW_BYTES);
    if (this.start > 0) this.start += await this.#toLineStart(this.start);
    this.size = this.start;
  }

  /** Bytes from `offset` to the start of the next line. */
  async #toLineStart(offset) {
    const { signal } = this.#abort;
    const response = await ask(this.#url({ offset, limit: 16_384 }), { signal });
    const head = new Uint8Array(await response.arrayBuffer());
    return head.indexOf(10) + 1;
  }

  async #read(decoder, follow) {
    const { signal } = this.#abort;
    const response = await ask(this.#url({ offset: this.size, follow: follow ? 1 : null }), { signal });
    this.#on.state(follow ? "following" : "");
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done || signal.aborted) break;
      this.size += value.byteLength;
      this.#on.text(decoder.decode(value, { stream: true }));
    }
  }

  /** The text before what is shown; "" when there is none. */
  async earlier() {
    if (this.start === 0) return "";
    const { signal } = this.#abort;
    const from = Math.max(0, this.start - WINDOW_BYTES);
    try {
      const offset = from === 0 ? 0 : from + (await this.#toLineStart(from));
      const response = await ask(this.#url({ offset, limit: this.start - offset }), { signal });
      const text = new TextDecoder().decode(await response.arrayBuffer());
      this.start = offset;
      return text;
    } catch {
      return "";
    }
  }

  #pause() {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, AGAIN_MS);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
