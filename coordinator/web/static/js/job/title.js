// The head of a job's page: its name, what may be done with it, and the verdict in plain words.

import { now } from "../shared/api.js";
import { el, icon, plain, prose } from "../shared/dom.js";
import { between, duration, plural, ticking, when } from "../shared/format.js";
import { api } from "../shared/site.js";
import { badge, mark, TERMINAL } from "../shared/states.js";

function size(job) {
  const nodes = plural(job.nodes, "replica");
  if (job.gpus_per_node === 0) return `${nodes}, CPU`;
  return job.gpus_per_node ? `${nodes} × ${plural(job.gpus_per_node, "GPU")}` : nodes;
}

function times(job) {
  if (job.ended_at) {
    const took = job.started_at ? ` after ${duration(between(job.started_at, job.ended_at))}` : "";
    return `ended ${when(job.ended_at)}${took}`;
  }
  return job.started_at
    ? `running for ${ticking(between(job.started_at, now()))}`
    : `submitted ${when(job.created_at)}`;
}

function buttons(job, session) {
  // A viewer's session may look only; the coordinator would refuse.
  if (session?.role === "viewer") return null;
  if (!TERMINAL.has(job.state)) {
    return el("button", { class: "button danger-quiet", type: "button", "data-do": "cancel" }, "Cancel");
  }
  if (job.state === "succeeded") return null;
  return el("button", { class: "button primary", type: "button", "data-do": "retry" }, "Retry");
}

function report(job) {
  return el(
    "a",
    {
      class: "button",
      href: api(`jobs/${encodeURIComponent(job.id)}/report`).pathname,
      download: `rankcall-${job.id}.md`,
      title: "Everything about this job in one document (Markdown)",
    },
    icon("download"),
    el("span", {}, "Report"),
  );
}

/** Name, state, id, size, times, and the buttons. */
export function title(job, session) {
  return [
    el(
      "div",
      { class: "grow" },
      el(
        "div",
        { class: "title-line" },
        el("h1", {}, el("bdi", {}, plain(job.name || job.id))),
        badge(job.state),
        job.kind === "preflight" && badge("note", "preflight"),
      ),
      el(
        "p",
        { class: "title-facts muted" },
        el(
          "button",
          {
            class: "copy mono",
            type: "button",
            "data-do": "copy",
            "data-text": job.id,
            title: "Copy the job's id",
          },
          job.id,
          icon("copy"),
        ),
        el("span", {}, size(job)),
        job.attempts > 1 && el("span", {}, `attempt ${job.attempts}`),
        el("span", {}, times(job)),
      ),
    ),
    el("div", { class: "buttons" }, report(job), buttons(job, session)),
  ];
}

// A verdict that a finding says in full needs no more of it than one look takes in.
const ONE_LOOK = 140;

/** The verdict's words, cut short where a finding below has them whole. */
function words(job) {
  const said = job.verdict || job.state;
  const repeated = job.findings.some((found) => found.message === said);
  return repeated && said.length > ONE_LOOK ? `${said.slice(0, ONE_LOOK).trimEnd()}…` : said;
}

/** The verdict line. Progress stands below it, so that one look tells how far it is. */
export function verdict(job) {
  return el(
    "div",
    { class: "verdict-body", "data-state": job.state },
    mark(job.state, job.state),
    el("p", { class: "verdict-line grow" }, prose(words(job))),
  );
}
