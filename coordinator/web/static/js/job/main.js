// A job's page: holds what is known of the job, takes what the live stream brings, and lets each part draw
// itself. The parts are functions of this state; only the chart and the log keep something of their own.

import { read, whoAmI } from "../shared/api.js";
import { el, fill, listen } from "../shared/dom.js";
import { everySecond, live, paced } from "../shared/live.js";
import { replicaRows } from "../shared/replicas.js";
import { api, jobIdHere, ROOT } from "../shared/site.js";
import { healed, say, showLink, signedIn, top } from "../shared/top.js";
import { act, copy } from "./actions.js";
import { answers } from "./answers.js";
import { artifacts } from "./artifacts.js";
import { attempts, attemptShown } from "./attempts.js";
import { Chart } from "./chart.js";
import { explain, findings } from "./findings.js";
import { Links } from "./links.js";
import { LogView } from "./log.js";
import { members } from "./members.js";
import { phase, training } from "./progress.js";
import { Series } from "./series.js";
import { stages } from "./stages.js";
import { title, verdict } from "./title.js";

const id = jobIdHere();
const place = (name) => document.getElementById(name);

const state = { job: null, replicas: [], session: null, attempt: null };
const series = new Series();
// Agents report each two seconds.
const REPLICAS_MS = 3000;
let chart = null;
let links = null;
let log = null;

function show() {
  const { job } = state;
  if (job === null) return;
  const attempt = attemptShown(job, state.attempt);
  document.title = `${job.name || job.id} · ${job.state} · rankcall`;
  fill(place("crumb"), job.name || job.id);
  fill(place("title"), title(job, state.session));
  fill(place("verdict"), verdict(job));
  fill(place("attempts"), attempts(job, attempt));
  fill(place("stages"), stages(job, attempt));
  part("findings", job.findings.length > 0, () => findings(job, attempt));
  const trains = series.any || (job.progress?.total_steps ?? job.progress?.step ?? 0) > 0;
  part("training", trains, () => null);
  if (trains) {
    fill(place("phase"), phase(job));
    fill(place("progress"), training(job));
    chart.show(attempt?.number ?? null);
  }
  part("answers", job.comparison.length > 0, () => answers(job.comparison));
  part("artifacts", job.artifacts.length > 0, () => artifacts(job, state.replicas));
  fill(place("members"), replicaRows(members(job, attempt, state.replicas)));
  links.follow(attempt);
  // A preflight runs nothing that writes a log.
  place("log-section").hidden = attempt === null || job.kind === "preflight";
  log.follow(job, attempt);
}

/** A part of the page that is there only once it has something to say. */
function part(name, there, content) {
  place(`${name}-section`).hidden = !there;
  const children = there ? content() : null;
  if (children !== null) fill(place(name), children);
}

const soon = paced(show);

/** Load and aliveness of the replicas, again and again; seldom where there are so many that it takes long. */
async function watchReplicas() {
  const began = performance.now();
  if (!document.hidden) {
    try {
      state.replicas = (await read("replicas")).items;
      soon();
    } catch {
      // The link's state is shown by the live stream; the next round tries again.
    }
  }
  setTimeout(watchReplicas, REPLICAS_MS + 20 * (performance.now() - began));
}

/** There is no such job: say so, and lead back. Nothing is wrong with the connection. */
function unknown(problem) {
  showLink("ended");
  place("title").querySelector("h1").textContent = "No such job";
  place("verdict").hidden = true;
  document.querySelector(".columns").hidden = true;
  say(problem.message);
  place("title").after(
    el(
      "p",
      { class: "muted" },
      "It may belong to another deployment, or its address was mistyped. ",
      el("a", { href: ROOT.pathname }, "All jobs and replicas"),
      " are on the overview.",
    ),
  );
}

function take(job) {
  state.job = job;
  soon();
}

function follow() {
  live(
    api(`jobs/${encodeURIComponent(id)}/events`),
    {
      job: take,
      metric(record) {
        series.add(record);
        soon();
      },
      finding(found) {
        if (state.job === null) return;
        const known = state.job.findings.some((one) => JSON.stringify(one) === JSON.stringify(found));
        if (!known) take({ ...state.job, findings: [...state.job.findings, found] });
      },
    },
    (link, problem) => {
      showLink(link);
      if (link === "live") healed();
      if (problem) say(problem);
    },
  );
}

async function begin() {
  top(() => chart?.recolour());
  chart = new Chart(place("chart"), series);
  links = new Links(place, id);
  log = new LogView(place("log"), place("log-tools"), id);
  listen(document.body, {
    cancel: () => act("cancel", state.job).then(soon),
    retry: () => act("retry", state.job).then(soon),
    copy,
    attempt(button) {
      state.attempt = Number(button.dataset.number);
      soon();
    },
  });
  explain(place("findings"), soon);
  try {
    state.job = await read(`jobs/${encodeURIComponent(id)}`);
  } catch (problem) {
    if (problem.status === 404) {
      unknown(problem);
      return;
    }
    say(problem);
    showLink("refused");
  }
  whoAmI().then((session) => {
    state.session = session;
    signedIn(session);
    soon();
  });
  follow();
  watchReplicas();
  everySecond(soon);
  soon();
}

begin();
