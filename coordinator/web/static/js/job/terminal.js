// From the bytes of a log to lines to show: carriage returns collapsed (a progress bar is its last state), colour
// codes turned into styles, everything else plain text. The log is hostile: whatever it says ends up in text
// nodes, lines have a greatest length, and a line that never ends takes no more memory than one that does.

import { AnsiUp } from "../../vendor/ansi_up/ansi_up.js";
import { plain } from "../shared/dom.js";

// Longer than any line a person reads; the rest is in the file.
const LONGEST_LINE = 4096;
const LONGEST_PENDING_BYTES = 65_536;
const NEWLINE = 10;
const RETURN = 13;

const utf8 = new TextDecoder();

/**
 * Bytes in pieces → whole lines, each with the number of bytes it stood for, and the line that is still being
 * written. A newline is no part of a longer UTF-8 sequence, so lines are cut in the bytes and decoded one by one.
 */
export class Lines {
  #held = [];
  #heldBytes = 0;
  #size = 0;

  /** Lines that `bytes` completes: `[{text, size}]`. */
  push(bytes) {
    const found = [];
    let from = 0;
    for (let end = bytes.indexOf(NEWLINE); end >= 0; end = bytes.indexOf(NEWLINE, from)) {
      this.#hold(bytes.subarray(from, end));
      found.push({ text: this.pending, size: this.#size + 1 });
      this.#held = [];
      this.#heldBytes = 0;
      this.#size = 0;
      from = end + 1;
    }
    // A copy: the rest must not keep the whole piece alive.
    if (from < bytes.length) this.#hold(bytes.slice(from));
    return found;
  }

  #hold(bytes) {
    this.#size += bytes.length;
    // Only what was written since the last return is visible; one at the very end may be half of "\r\n".
    const back = bytes.lastIndexOf(RETURN, bytes.length - 2);
    if (back >= 0 && bytes.length > 1) {
      this.#held = [];
      this.#heldBytes = 0;
    }
    const seen = back > 0 && bytes.length > 1 ? bytes.subarray(back) : bytes;
    const room = LONGEST_PENDING_BYTES - this.#heldBytes;
    if (room <= 0 || seen.length === 0) return;
    this.#held.push(seen.subarray(0, room));
    this.#heldBytes += Math.min(room, seen.length);
  }

  /** The unfinished line as it would stand on a terminal now. */
  get pending() {
    const whole = new Uint8Array(this.#heldBytes);
    let at = 0;
    for (const piece of this.#held) {
      whole.set(piece, at);
      at += piece.length;
    }
    return collapsed(utf8.decode(whole));
  }
}

/** What a terminal shows of a line with carriage returns in it. */
function collapsed(line) {
  if (!line.includes("\r")) return line;
  const parts = line.split("\r");
  for (let index = parts.length - 1; index > 0; index -= 1) {
    if (parts[index].trim() !== "") return parts[index];
  }
  return parts[0];
}

const ESCAPE = "\u001b";
const TEXT = 1;
const SGR = 5;
const LINK = 6;

/** Colour codes → pieces of text with class names. Keeps the colours that are on from line to line. */
export class Painter extends AnsiUp {
  /** The pieces of one line: `[{text, classes}]`. */
  paint(line) {
    const long = line.length > LONGEST_LINE;
    const text = long ? line.slice(0, LONGEST_LINE) : line;
    const pieces =
      text.includes(ESCAPE) || this.#styled() ? this.#parse(text) : [{ text: plain(text), classes: "" }];
    if (long) pieces.push({ text: " … this line goes on in the whole log", classes: "log-more" });
    return pieces;
  }

  #styled() {
    return this.fg !== null || this.bg !== null || this.bold || this.faint || this.italic || this.underline;
  }

  #parse(text) {
    const pieces = [];
    this.append_buffer(text);
    for (;;) {
      const packet = this.get_next_packet();
      if (packet.kind === TEXT) pieces.push({ text: plain(packet.text), classes: this.#classes() });
      // A hyperlink's address is the log's word: its text is shown, not followed.
      else if (packet.kind === LINK) pieces.push({ text: plain(packet.text), classes: this.#classes() });
      else if (packet.kind === SGR) this.process_ansi(packet);
      else if (packet.kind === 0 || packet.kind === 2) break;
    }
    // A sequence that the line's end cut off is shown as what it is.
    if (this._buffer !== "") pieces.push({ text: plain(this._buffer), classes: "log-more" });
    this._buffer = "";
    return pieces;
  }

  #classes() {
    const classes = [];
    if (this.bold) classes.push("ansi-bold");
    if (this.faint) classes.push("ansi-faint");
    if (this.italic) classes.push("ansi-italic");
    if (this.underline) classes.push("ansi-underline");
    if (this.fg) classes.push(`${this.#named(this.fg)}-fg`);
    if (this.bg) classes.push(`${this.#named(this.bg)}-bg`);
    return classes.join(" ");
  }

  /** One of the sixteen colours of our theme, which is readable on its background; the nearest for any other. */
  #named(colour) {
    if (colour.class_name !== "truecolor") return colour.class_name;
    const distance = (one) =>
      one.rgb.reduce((sum, value, index) => sum + (value - colour.rgb[index]) ** 2, 0);
    return this.ansi_colors.flat().reduce((best, one) => (distance(one) < distance(best) ? one : best))
      .class_name;
  }
}
