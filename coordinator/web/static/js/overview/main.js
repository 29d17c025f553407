// The overview: how many replicas have come, what they do, and all jobs, newest first. One live stream.

import { read, whoAmI } from "../shared/api.js";
import { fill } from "../shared/dom.js";
import { everySecond, live, paced } from "../shared/live.js";
import { replicaRows } from "../shared/replicas.js";
import { api } from "../shared/site.js";
import { healed, say, showLink, signedIn, top } from "../shared/top.js";
import { audit } from "./audit.js";
import { jobRows, noJobs } from "./jobs.js";
import { headline } from "./headline.js";

const place = (id) => document.getElementById(id);

let jobs = null;
let replicas = { items: [], expected: null, message: "" };
// Older pages of jobs, asked for by hand; the newest fifty come by themselves.
let older = [];
let cursor = null;

function inOrder(items) {
  const rank = (replica) => (replica.role === "spare" ? Infinity : (replica.rank ?? Infinity));
  return [...items].sort(
    (a, b) =>
      Number(b.alive) - Number(a.alive) ||
      rank(a) - rank(b) ||
      a.hostname.localeCompare(b.hostname, "en", { numeric: true }),
  );
}

function show() {
  showJobs();
  fill(place("replicas"), replicaRows(inOrder(replicas.items)));
}

const soon = paced(show);

function showJobs() {
  if (jobs === null) return;
  const newest = new Set(jobs.map((job) => job.id));
  const all = [...jobs, ...older.filter((job) => !newest.has(job.id))];
  fill(place("verdict"), headline(replicas, all));
  fill(place("jobs"), all.length > 0 ? jobRows(all, { more: cursor !== null }) : noJobs());
}

async function moreJobs() {
  try {
    const page = await read("jobs", { limit: 50, cursor });
    older = [...older, ...page.items];
    cursor = page.next_cursor ?? null;
    show();
  } catch (problem) {
    say(problem);
  }
}

async function begin() {
  top();
  try {
    // The first answer of the page also says whether somebody must sign in.
    const page = await read("jobs", { limit: 50 });
    jobs = page.items;
    cursor = page.next_cursor ?? null;
    replicas = await read("replicas");
    signedIn(await whoAmI());
    show();
    say(null);
  } catch (problem) {
    say(problem);
  }
  live(
    api("watch"),
    {
      overview(seen) {
        ({ jobs, replicas } = seen);
        soon();
      },
    },
    (state, problem) => {
      showLink(state);
      if (state === "live") healed();
      if (problem) say(problem);
    },
  );
  everySecond(showJobs);
  audit(place("audit"));
  place("jobs").addEventListener("click", (event) => {
    if (event.target.closest("[data-do=more]")) moreJobs();
  });
}

begin();
