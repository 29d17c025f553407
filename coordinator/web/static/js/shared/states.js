// How states look everywhere: the icon, the word, the tone. One table, so that "failed" is the same red thing
// on the list, on the job and on a stage.

import { el, icon } from "./dom.js";

const STAGES = ["gather", "match", "tcp", "collective", "prepare", "train", "collect", "compare"];

/** The stages of a job: a preflight ends after the collective. */
export function stagesOf(job) {
  return job.kind === "preflight" ? STAGES.slice(0, 4) : STAGES;
}

const ICONS = {
  queued: "queued",
  waiting: "waiting",
  running: "running",
  active: "running",
  ending: "running",
  succeeded: "passed",
  passed: "passed",
  failed: "failed",
  cancelled: "skipped",
  skipped: "skipped",
  ended: "skipped",
};

export const TERMINAL = new Set(["succeeded", "failed", "cancelled"]);

/** A round mark: tone by colour, meaning by shape. `title` null where words stand beside it. */
export function mark(state, title = null) {
  return el("span", { class: "mark", "data-state": state }, icon(ICONS[state] ?? "waiting", { title }));
}

/** A state as a word in a coloured frame. */
export function badge(state, words = state) {
  return el("span", { class: "badge", "data-state": state }, words);
}

/** A dot for each stage: how far a job has come. */
export function dots(job) {
  const all = stagesOf(job);
  const here = all.indexOf(job.stage);
  const states = all.map((_, index) => {
    if (job.state === "succeeded" || index < here) return "passed";
    if (index > here) return "waiting";
    return (
      { queued: "queued", running: "running", failed: "failed", cancelled: "skipped" }[job.state] ?? "waiting"
    );
  });
  const words =
    job.state === "succeeded"
      ? `all ${all.length} stages done`
      : `stage ${here + 1} of ${all.length}: ${job.stage}`;
  return el(
    "span",
    { class: "dots", role: "img", "aria-label": words, title: words },
    states.map((state) => el("span", { class: "dot", "data-state": state })),
  );
}
