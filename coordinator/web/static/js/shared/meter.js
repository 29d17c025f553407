// A bar for a share of something, with its figure in words beside it.

import { el } from "./dom.js";

/** `share` from 0 to 1, or null for unknown (then only the words are shown). */
export function meter(label, share, words, { tone = "plain" } = {}) {
  const known = typeof share === "number" && Number.isFinite(share);
  const bounded = known ? Math.min(1, Math.max(0, share)) : 0;
  return el(
    "div",
    { class: "meter", "data-tone": tone },
    el(
      "div",
      { class: "meter-words" },
      el("span", { class: "muted" }, label),
      el("span", { class: "figure" }, words),
    ),
    known &&
      el(
        "div",
        {
          class: "meter-track",
          role: "meter",
          "aria-label": label,
          "aria-valuemin": 0,
          "aria-valuemax": 100,
          "aria-valuenow": Math.round(bounded * 100),
          "aria-valuetext": words,
        },
        el("div", { class: "meter-fill", vars: { "--share": bounded } }),
      ),
  );
}
