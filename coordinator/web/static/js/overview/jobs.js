// The list of jobs: name, verdict, how far it has come, how long it took.

import { now } from "../shared/api.js";
import { el, plain, prose } from "../shared/dom.js";
import { between, duration, plural, ticking, when } from "../shared/format.js";
import { jobPage } from "../shared/site.js";
import { badge, dots, mark } from "../shared/states.js";

function took(job) {
  if (!job.started_at) return job.ended_at ? "" : "not started";
  if (job.ended_at) return duration(between(job.started_at, job.ended_at));
  return ticking(between(job.started_at, now()));
}

function size(job) {
  const nodes = plural(job.nodes, "replica");
  if (job.gpus_per_node === 0) return `${nodes}, CPU`;
  return job.gpus_per_node ? `${nodes} × ${plural(job.gpus_per_node, "GPU")}` : nodes;
}

function row(job) {
  return el(
    "li",
    { class: "job", key: job.id, "data-state": job.state },
    mark(job.state),
    el(
      "div",
      { class: "job-what" },
      el(
        "div",
        { class: "job-name" },
        el("a", { class: "cover", href: jobPage(job.id) }, el("bdi", {}, plain(job.name || job.id))),
        badge(job.state),
        job.kind === "preflight" && badge("note", "preflight"),
      ),
      el("p", { class: "muted small job-verdict" }, prose(job.verdict)),
    ),
    el(
      "div",
      { class: "job-way" },
      dots(job),
      el("span", { class: "muted small" }, size(job), job.attempts > 1 && ` · attempt ${job.attempts}`),
    ),
    el(
      "div",
      { class: "job-when" },
      el("span", { class: "figure" }, took(job)),
      el("time", { class: "muted small", datetime: job.created_at }, when(job.created_at)),
    ),
  );
}

/** The rows, and a button for older ones where there are `more`. */
export function jobRows(jobs, { more }) {
  return [
    el("ul", { class: "rows card jobs" }, jobs.map(row)),
    more && el("button", { class: "button", type: "button", "data-do": "more" }, "Older jobs"),
  ];
}

/** What to type first. */
export function noJobs() {
  return el(
    "div",
    { class: "card empty" },
    el(
      "p",
      {},
      "No job has been submitted. From any replica, or from your own machine with RANKCALL_URL and RANKCALL_TOKEN set:",
    ),
    el("pre", {}, "rankcall check lora-1b.yml --nodes 2\nrankcall submit lora-1b.yml --watch"),
  );
}
