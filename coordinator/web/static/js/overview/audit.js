// Who did what, when, from where: the newest events of the audit, read when somebody opens the list.

import { read } from "../shared/api.js";
import { el, fill, plain } from "../shared/dom.js";
import { when } from "../shared/format.js";
import { jobPage } from "../shared/site.js";
import { say } from "../shared/top.js";

const PAGE = 50;
const AGAIN_MS = 5000;

const WORDS = {
  "job.submitted": "submitted a job",
  "job.cancel_requested": "asked to cancel a job",
  "job.retried": "asked to try a job again",
  "job.queued": "queued a job",
  "job.running": "moved a job on",
  "job.succeeded": "saw a job succeed",
  "job.failed": "saw a job fail",
  "job.cancelled": "cancelled a job",
  "job.taken_up": "took a job up again",
  "job.dropped": "dropped the logs of a job",
  "coordinator.active": "became the active coordinator",
  "preflight.submitted": "asked for a preflight",
  "replica.registered": "registered",
  "session.started": "signed in",
  "session.ended": "signed out",
  "access.refused": "was turned away",
};

/** What is worth a reader's time of an event's details, as one line. */
function detail(event) {
  const said = event.detail ?? {};
  if (said.verdict) return said.verdict;
  if (event.action === "access.refused")
    return `${said.method} ${said.route} (${said.status})${said.times > 1 ? `, ${said.times} times` : ""}`;
  return said.name ?? said.hostname ?? "";
}

function row(event) {
  return el(
    "li",
    { class: "event", key: String(event.id) },
    el("time", { class: "muted small", datetime: event.at }, when(event.at)),
    el(
      "div",
      { class: "event-what" },
      el("bdi", { class: "event-who" }, plain(event.actor)),
      ` ${WORDS[event.action] ?? plain(event.action)} `,
      event.job_id && el("a", { href: jobPage(event.job_id) }, plain(event.job_id)),
      el("p", { class: "muted small" }, plain(detail(event))),
    ),
  );
}

/** Keeps the list inside `details` true while it is open. */
export function audit(details) {
  const list = details.querySelector("[data-list]");
  let events = [];
  let cursor = null;
  let timer = null;

  function show() {
    fill(
      list,
      events.length > 0 ? el("ul", { class: "rows card events" }, events.map(row)) : el("p", { class: "muted" }, "Nothing yet."),
      cursor !== null && el("button", { class: "button", type: "button", "data-do": "older" }, "Older events"),
    );
  }

  async function newest() {
    try {
      const page = await read("events", { limit: PAGE });
      const known = new Set(page.items.map((event) => event.id));
      const before = events.filter((event) => !known.has(event.id));
      // More than a page has come meanwhile: what lies between is read with "older".
      const joined = events.length > 0 && before.length < events.length;
      events = joined ? [...page.items, ...before] : page.items;
      if (!joined) cursor = page.next_cursor ?? null;
      show();
    } catch (problem) {
      say(problem);
    }
  }

  async function older() {
    try {
      const page = await read("events", { limit: PAGE, cursor });
      events = [...events, ...page.items];
      cursor = page.next_cursor ?? null;
      show();
    } catch (problem) {
      say(problem);
    }
  }

  details.addEventListener("toggle", () => {
    clearInterval(timer);
    if (!details.open) return;
    newest();
    timer = setInterval(newest, AGAIN_MS);
  });
  list.addEventListener("click", (event) => {
    if (event.target.closest("[data-do=older]")) older();
  });
}
