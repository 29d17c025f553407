// Where training is: the bar, and the figures the field report read by eye.

import { now } from "../shared/api.js";
import { el } from "../shared/dom.js";
import { between, bytes, clock, count, duration, gib, measure, percent } from "../shared/format.js";
import { badge, TERMINAL } from "../shared/states.js";

const PHASES = { load: "loading", train: "training", evaluate: "evaluating", save: "saving", done: "done" };

/** What the trainer is doing, while it does it. */
export function phase(job) {
  const said = job.progress?.phase;
  if (!said || TERMINAL.has(job.state) || job.stage !== "train") return null;
  return badge("running", PHASES[said] ?? said);
}

function left(job) {
  const { progress } = job;
  if (progress.total_steps && progress.step >= progress.total_steps) return "all steps done";
  if (TERMINAL.has(job.state)) return "stopped here";
  if (progress.eta_s === null || progress.eta_s === undefined) return "";
  // The coordinator's estimate is as old as the record it was made from.
  const age = progress.updated_at ? Math.max(0, between(progress.updated_at, now())) : 0;
  const remaining = Math.max(1, Math.round(progress.eta_s - age));
  return `about ${duration(remaining)} left, until ${clock(now() + remaining * 1000)}`;
}

function bar(job) {
  const { progress } = job;
  const share = progress.total_steps ? progress.step / progress.total_steps : null;
  const words = progress.total_steps
    ? `step ${count(progress.step)} of ${count(progress.total_steps)}`
    : `step ${count(progress.step)}`;
  return el(
    "div",
    { class: "progress" },
    el(
      "div",
      { class: "progress-words" },
      el("span", { class: "progress-share" }, share === null ? "" : percent(Math.floor(share * 100) / 100)),
      el(
        "span",
        { class: "progress-step" },
        "Step ",
        el("strong", {}, count(progress.step)),
        progress.total_steps ? ` of ${count(progress.total_steps)}` : "",
      ),
      el("span", { class: "grow" }),
      el("span", { class: "muted" }, left(job)),
    ),
    el(
      "div",
      {
        class: "progress-track",
        role: "progressbar",
        "aria-label": "Training progress",
        "aria-valuemin": 0,
        "aria-valuemax": progress.total_steps,
        "aria-valuenow": share === null ? null : progress.step,
        "aria-valuetext": words,
        "data-state": share >= 1 ? "succeeded" : job.state,
      },
      el("div", { class: "progress-fill", vars: { "--share": share ?? 0 } }),
    ),
  );
}

function tile(name, value, note = null, wide = false) {
  return el(
    "div",
    { class: wide ? "tile wide" : "tile" },
    el("dt", {}, name),
    el("dd", {}, el("span", { class: "figure" }, value), note && el("span", { class: "muted small" }, note)),
  );
}

const has = (value) => value !== null && value !== undefined;

function tiles(progress) {
  const memory = progress.memory_total_bytes
    ? `of ${gib(progress.memory_total_bytes)} · ${percent(progress.memory_bytes / progress.memory_total_bytes)}`
    : null;
  const share = progress.all_parameters
    ? `of ${count(progress.all_parameters)} · ${percent(progress.trainable_parameters / progress.all_parameters, 4)}`
    : null;
  return [
    has(progress.loss) && tile("Train loss", measure(progress.loss)),
    has(progress.eval_loss) && tile("Eval loss", measure(progress.eval_loss)),
    has(progress.perplexity) && tile("Perplexity", measure(progress.perplexity)),
    has(progress.step_s) &&
      tile(
        "Time a step",
        progress.step_s < 0.1 ? duration(progress.step_s) : `${measure(progress.step_s, 3)} s/it`,
      ),
    has(progress.tokens_per_s) && tile("Throughput", count(Math.round(progress.tokens_per_s)), "tokens/s"),
    has(progress.learning_rate) && tile("Learning rate", measure(progress.learning_rate)),
    has(progress.grad_norm) && tile("Gradient norm", measure(progress.grad_norm, 3)),
    has(progress.epoch) && tile("Epoch", measure(progress.epoch, 3)),
    has(progress.memory_bytes) &&
      tile(
        "Memory",
        progress.memory_total_bytes ? gib(progress.memory_bytes) : bytes(progress.memory_bytes),
        memory,
      ),
    has(progress.train_loss) && tile("Mean loss of the run", measure(progress.train_loss)),
    has(progress.train_runtime_s) && tile("Time of the run", duration(progress.train_runtime_s)),
    has(progress.world_size) &&
      tile("World size", count(progress.world_size), progress.world_size === 1 ? "rank" : "ranks"),
    has(progress.trainable_parameters) &&
      tile("Trainable parameters", count(progress.trainable_parameters), share, true),
  ];
}

/** Bar and figures of a job that has some. */
export function training(job) {
  if (!job.progress) return null;
  return [bar(job), el("dl", { class: "tiles" }, tiles(job.progress))];
}
