// A list of replicas: who, where, which rank, which GPU, alive or not, how busy. The overview shows all of
// them, a job's page its members.

import { el, icon, plain } from "./dom.js";
import { bytes, count, duration, gib, measure, percent, plural } from "./format.js";
import { meter } from "./meter.js";

// More rows than this help nobody and slow the page.
const MOST_ROWS = 128;

/** What the training runs on, in two parts: "8 × NVIDIA H200" and "141 GiB each", or "CPU" and "2 cores". */
function hardware(replica) {
  const gpus = replica.facts?.gpus ?? [];
  if (gpus.length > 0) {
    const names = [...new Set(gpus.map((gpu) => gpu.name))];
    const memory = gpus[0].memory_bytes
      ? `${gib(gpus[0].memory_bytes)}${gpus.length > 1 ? " each" : ""}`
      : "";
    return [`${gpus.length} × ${names.map(plain).join(" / ")}`, memory];
  }
  if (replica.gpu_count) return [plural(replica.gpu_count, "GPU"), ""];
  const cores = replica.facts?.cpu_count;
  return ["CPU", cores ? plural(cores, "core") : ""];
}

function seen(replica) {
  if (replica.alive) return "alive";
  return `silent for ${duration(Math.floor(replica.last_seen_s ?? 0))}`;
}

function standing(replica) {
  if (replica.role === "ending") return el("span", { class: "badge", "data-state": "ending" }, "ending");
  if (replica.rank !== null && replica.rank !== undefined && replica.role !== "spare") {
    return el("span", { class: "badge rank" }, `rank ${replica.rank}`);
  }
  return el("span", { class: "badge" }, "spare");
}

function load(replica) {
  const seen_now = replica.telemetry;
  // An old reading would look like a present one.
  if (!replica.alive || !seen_now)
    return el("div", { class: "muted small" }, replica.alive ? "no readings yet" : "no readings");
  const gpus = seen_now.gpus ?? [];
  const busiest = Math.max(...gpus.map((gpu) => gpu.utilization ?? 0));
  const used = gpus.reduce((sum, gpu) => sum + (gpu.memory_used_bytes ?? 0), 0);
  const total = gpus.reduce((sum, gpu) => sum + (gpu.memory_total_bytes ?? 0), 0);
  const hottest = Math.max(...gpus.map((gpu) => gpu.temperature_c ?? -Infinity));
  const heat = Number.isFinite(hottest) ? ` · ${Math.round(hottest)} °C` : "";
  return el(
    "div",
    { class: "meters" },
    gpus.length > 0 && meter("GPU", busiest / 100, `${percent(busiest / 100)}${heat}`),
    gpus.length > 0 &&
      meter("VRAM", total ? used / total : null, `${measure(used / 2 ** 30, 3)} of ${gib(total)}`),
    meter("CPU", share(seen_now.cpu_percent, 100), percent(share(seen_now.cpu_percent, 100))),
    meter(
      "RAM",
      share(seen_now.memory_used_bytes, seen_now.memory_total_bytes),
      bytes(seen_now.memory_used_bytes),
    ),
  );
}

function share(part, whole) {
  return typeof part === "number" && whole ? part / whole : null;
}

/** How far its clock is off; nothing where that is no more than a report's way. */
function clock(offset) {
  if (typeof offset !== "number" || Math.abs(offset) < 0.5) return null;
  return `${duration(Math.abs(offset))} ${offset > 0 ? "ahead of" : "behind"} the coordinator's`;
}

function facts(replica) {
  const known = replica.facts;
  if (!known) return null;
  const packages = Object.entries(known.packages ?? {});
  const rows = [
    ["Python", known.python],
    ["CUDA", known.cuda],
    ["NCCL", known.nccl],
    ["Driver", known.driver],
    ["Platform", known.platform],
    ...packages,
    ...(known.disks ?? []).map((disk) => [
      `${disk.purpose} free`,
      `${bytes(disk.free_bytes)} of ${bytes(disk.total_bytes)} · ${disk.path}`,
    ]),
    ...Object.entries(known.leftovers ?? {}).map(([name, value]) => [`${name} (scrubbed)`, value]),
    ["Clock", clock(replica.clock_offset_s)],
    ["Agent memory", replica.telemetry?.agent_rss_bytes ? bytes(replica.telemetry.agent_rss_bytes) : null],
    ["Agent starts", count(replica.incarnation)],
    ["Replica", replica.id],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el(
    "details",
    { class: "facts" },
    el("summary", {}, "Facts"),
    (known.problems ?? []).map((problem) => el("p", { class: "problem" }, icon("warning"), plain(problem))),
    el(
      "dl",
      { class: "pairs" },
      rows.map(([name, value]) => [el("dt", {}, plain(name)), el("dd", {}, plain(value))]),
    ),
  );
}

function row(replica) {
  const [device, amount] = hardware(replica);
  const address = replica.address || replica.addresses?.[0] || "";
  return el(
    "li",
    { class: "replica", key: replica.id, "data-alive": replica.alive ? "yes" : "no" },
    el(
      "div",
      { class: "replica-who" },
      el("span", { class: "pulse", "data-alive": replica.alive ? "yes" : "no" }),
      el(
        "div",
        { class: "clip-box" },
        el("div", { class: "replica-name" }, el("bdi", {}, plain(replica.hostname || replica.id))),
        el("div", { class: "muted small mono" }, el("bdi", {}, plain(address))),
      ),
    ),
    el(
      "div",
      { class: "replica-role" },
      standing(replica),
      el("span", { class: replica.alive ? "muted small" : "bad small" }, seen(replica)),
    ),
    el(
      "div",
      { class: "replica-gpu with-icon" },
      icon("chip"),
      el("div", { class: "clip-box" }, el("div", {}, device), el("div", { class: "muted small" }, amount)),
    ),
    load(replica),
    facts(replica),
  );
}

/** Rows for `replicas`, in the order given. */
export function replicaRows(replicas) {
  const shown = replicas.slice(0, MOST_ROWS);
  const left = replicas.length - shown.length;
  return [
    el("ul", { class: "rows replicas" }, shown.map(row)),
    left > 0 &&
      el(
        "p",
        { class: "muted" },
        `… and ${plural(left, "more replica", "more replicas")}: rankcall nodes lists them all.`,
      ),
  ];
}
