// What the base and the tuned model answered to the same prompts, side by side, and how much each repeats itself.

import { el, plain } from "../shared/dom.js";
import { percent } from "../shared/format.js";
import { meter } from "../shared/meter.js";

// From here on an answer says the same again and again; below, it is language being language.
const REPETITIVE = 0.3;

function answer(name, text, repetition) {
  return el(
    "div",
    { class: "answer", "data-which": name },
    el("h4", {}, name === "base" ? "Base model" : "Fine-tuned"),
    el(
      "p",
      { class: "answer-text" },
      text.trim() === "" ? el("em", { class: "muted" }, "(no answer)") : plain(text),
    ),
    meter("repeats itself", repetition, percent(repetition), {
      tone: repetition >= REPETITIVE ? "warn" : "good",
    }),
  );
}

/** A card for each prompt. */
export function answers(comparison) {
  return comparison.map((compared, index) =>
    el(
      "article",
      { class: "compared", key: String(index) },
      el("h3", { class: "prompt" }, plain(compared.prompt)),
      el(
        "div",
        { class: "pair" },
        answer("base", compared.base, compared.base_repetition),
        answer("tuned", compared.tuned, compared.tuned_repetition),
      ),
    ),
  );
}
