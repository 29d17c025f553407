// The first line of the overview: how many replicas have come, as words and as a row of lamps, and what is
// being done right now.

import { el, plain } from "../shared/dom.js";
import { plural } from "../shared/format.js";
import { jobPage } from "../shared/site.js";
import { mark, stagesOf, TERMINAL } from "../shared/states.js";

// A lamp a replica, as long as they can be told apart.
const MOST_LAMPS = 64;

function lamps(replicas) {
  const here = replicas.items.filter((replica) => replica.alive).length;
  const all = Math.max(replicas.expected ?? 0, replicas.items.length);
  if (all === 0 || all > MOST_LAMPS) return null;
  const words = `${here} of ${all} replicas alive`;
  return el(
    "div",
    { class: "lamps", role: "img", "aria-label": words, title: words },
    Array.from({ length: all }, (_, index) =>
      el("span", { class: "lamp", "data-on": index < here ? "yes" : "no" }),
    ),
  );
}

function state(replicas) {
  const here = replicas.items.filter((replica) => replica.alive).length;
  if (replicas.items.length > here) return "failed";
  return here < (replicas.expected ?? 1) ? "waiting" : "passed";
}

function doing(jobs) {
  const running = jobs.filter((job) => job.state === "running");
  const queued = jobs.filter((job) => job.state === "queued").length;
  if (running.length === 0 && queued === 0) {
    const last = jobs.find((job) => TERMINAL.has(job.state));
    if (!last) return el("p", { class: "muted" }, "No job yet.");
    return el(
      "p",
      { class: "muted" },
      "Nothing is running. Last: ",
      el("a", { href: jobPage(last.id) }, plain(last.name || last.id)),
      ", ",
      last.state,
      ".",
    );
  }
  return [
    running.map((job) =>
      el(
        "p",
        { key: job.id, class: "muted" },
        "Running ",
        el("a", { href: jobPage(job.id) }, plain(job.name || job.id)),
        `, stage ${stagesOf(job).indexOf(job.stage) + 1} of ${stagesOf(job).length}: ${job.stage}.`,
      ),
    ),
    queued > 0 && el("p", { class: "muted" }, `${plural(queued, "job")} waiting in the queue.`),
  ];
}

/** The verdict card of the overview. */
export function headline(replicas, jobs) {
  const here = replicas.items.filter((replica) => replica.alive).length;
  const words = replicas.message || `${plural(here, "replica")} registered`;
  return el(
    "div",
    { class: "verdict-body", "data-state": state(replicas) },
    mark(state(replicas)),
    el("div", { class: "grow" }, el("p", { class: "verdict-line" }, plain(words)), doing(jobs)),
    lamps(replicas),
  );
}
