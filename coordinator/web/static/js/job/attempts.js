// Which attempt of the job is shown. The newest, unless the reader chose another.

import { el } from "../shared/dom.js";

/** All attempts, oldest first. */
function allAttempts(job) {
  return [...job.previous, ...(job.attempt ? [job.attempt] : [])].sort((a, b) => a.number - b.number);
}

/** The chosen attempt, or the newest, but not one that only tested the links after a hang; null while there is none. */
export function attemptShown(job, number) {
  const all = allAttempts(job);
  const meant = all.filter((attempt) => attempt.state === "active" || trains(attempt, job));
  return all.find((attempt) => attempt.number === number) ?? meant.at(-1) ?? all.at(-1) ?? null;
}

function trains(attempt, job) {
  return job.kind === "preflight" || attempt.stages.some((stage) => stage.stage === "train");
}

/** Buttons for the attempts, where there are several. */
export function attempts(job, shown) {
  const all = allAttempts(job);
  if (all.length < 2) return null;
  return el(
    "div",
    { class: "segmented", role: "group", "aria-label": "Attempt" },
    all.map((attempt) =>
      el(
        "button",
        {
          type: "button",
          key: String(attempt.number),
          "data-do": "attempt",
          "data-number": attempt.number,
          "aria-pressed": String(attempt === shown),
          title: `Attempt ${attempt.number}: ${attempt.outcome ?? attempt.state}`,
        },
        `#${attempt.number}`,
      ),
    ),
  );
}
