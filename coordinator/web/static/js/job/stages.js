// The eight gates in their order: state, what was seen, how long it took, and the measured figures.

import { now } from "../shared/api.js";
import { el, prose } from "../shared/dom.js";
import { between, count, duration, ticking } from "../shared/format.js";
import { mark, stagesOf, TERMINAL } from "../shared/states.js";
import { figures } from "./figures.js";

const NAMES = {
  gather: ["Gather", "Replicas register"],
  match: ["Match", "Their GPUs and versions are compared"],
  tcp: ["TCP", "Every link, both ways"],
  collective: ["Collective", "all_reduce among all ranks"],
  prepare: ["Prepare", "The data is tokenised"],
  train: ["Train", "All ranks, at the same time"],
  collect: ["Collect", "The result is hashed and verified"],
  compare: ["Compare", "Base and tuned model answer"],
};
const WORDS = {
  waiting: "waiting",
  running: "running",
  passed: "passed",
  failed: "failed",
  skipped: "skipped",
  cancelled: "cancelled",
};

/** Before the first attempt only gathering happens, and the job's verdict tells of it. */
function withoutAttempt(job) {
  const first = job.state === "cancelled" ? "skipped" : job.state === "failed" ? "failed" : "running";
  return stagesOf(job).map((stage) => ({
    stage,
    state: stage === "gather" ? first : "waiting",
    started_at: stage === "gather" && first === "running" ? job.created_at : null,
    ended_at: null,
    summary: stage === "gather" ? job.verdict : "",
    figures: {},
  }));
}

function took(stage, over) {
  if (!stage.started_at) return "";
  if (stage.ended_at) return duration(between(stage.started_at, stage.ended_at));
  // A stage without an end in a job that is over was cut off: no clock runs for it.
  return stage.state === "running" && !over ? ticking(between(stage.started_at, now())) : "";
}

/** What was seen (in short where a finding says it in full); of a running training, where it is; else what the stage is for. */
function words(stage, about, { progress, findings }) {
  const said = findings.find((found) => found.message === stage.summary);
  if (said) return `${said.code}: see the findings.`;
  if (stage.summary) return stage.summary;
  if (stage.stage !== "train" || stage.state !== "running" || !progress?.step) return about;
  return `step ${count(progress.step)}${progress.total_steps ? ` of ${count(progress.total_steps)}` : ""}`;
}

/** What is shown of a stage that the job's end cut off. */
function standing(stage, { over, cancelled }) {
  if (cancelled && stage.state === "failed") return "cancelled";
  return stage.state === "running" && over ? "skipped" : stage.state;
}

function row(stage, seen) {
  const [name, about] = NAMES[stage.stage] ?? [stage.stage, ""];
  const state = standing(stage, seen);
  const measured = figures(stage.figures ?? {});
  return el(
    "li",
    {
      class: "stage",
      key: stage.stage,
      "data-state": state,
      "aria-current": state === "running" ? "step" : null,
    },
    mark(state),
    el(
      "div",
      { class: "stage-body" },
      el(
        "details",
        { class: measured.length > 0 ? "stage-more" : "stage-more bare" },
        el(
          "summary",
          {},
          el(
            "span",
            { class: "stage-head" },
            el(
              "span",
              { class: "stage-name" },
              name,
              el("span", { class: "visually-hidden" }, `, ${WORDS[state]}`),
            ),
            el("span", { class: "stage-time figure" }, took(stage, seen.over)),
          ),
          el("span", { class: "stage-summary" }, prose(words(stage, about, seen))),
        ),
        measured.length > 0 && el("dl", { class: "pairs" }, measured),
      ),
    ),
  );
}

/** The list of stages of `attempt` (null: none has begun). */
export function stages(job, attempt) {
  const over = attempt ? attempt.state === "ended" : TERMINAL.has(job.state);
  const seen = {
    over,
    cancelled: (attempt?.outcome ?? job.state) === "cancelled",
    findings: job.findings,
    progress: attempt === job.attempt ? job.progress : null,
  };
  return (attempt?.stages.length ? attempt.stages : withoutAttempt(job)).map((stage) => row(stage, seen));
}
