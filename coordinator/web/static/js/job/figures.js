// Measured figures of a stage as name and value. A figure's name tells its unit (`…_s`, `…_bytes`,
// `bytes_per_s…`), so a new one is shown well before this page has heard of it.

import { el, plain } from "../shared/dom.js";
import { bytes, count, duration, measure } from "../shared/format.js";

const NAMES = {
  rtt_max_s: "slowest round trip",
  bytes_per_s_min: "slowest link",
  bytes_per_s_max: "fastest link",
  init_s: "init",
  first_all_reduce_s: "first all_reduce",
  rendezvous_port: "rendezvous port",
  total_steps: "steps",
  world_size: "world size",
  weight_files: "weight files",
  bytes: "size",
  nccl: "NCCL",
};
// Numbers that name something are not grouped into thousands.
const PLAIN = /(port|rank|id|pid)$/;

function value(name, amount) {
  if (typeof amount === "boolean") return amount ? "yes" : "no";
  if (typeof amount !== "number") return plain(typeof amount === "string" ? amount : JSON.stringify(amount));
  if (PLAIN.test(name)) return String(amount);
  if (/bytes_per_s/.test(name)) return `${bytes(amount)}/s`;
  if (/(^|_)bytes(_|$)/.test(name)) return bytes(amount);
  if (/_s$/.test(name)) return duration(amount);
  return Number.isInteger(amount) ? count(amount) : measure(amount);
}

function label(name) {
  return (
    NAMES[name] ??
    plain(name)
      .replace(/_(s|bytes)$/, "")
      .replaceAll("_", " ")
  );
}

/** `dt` and `dd` for each figure that is known. */
export function figures(values) {
  return Object.entries(values)
    .filter(([, amount]) => amount !== null && amount !== undefined && amount !== "")
    .flatMap(([name, amount]) => {
      if (typeof amount === "object" && !Array.isArray(amount)) return nested(name, amount);
      return [el("dt", {}, label(name)), el("dd", {}, value(name, amount))];
    });
}

/** A table by payload size or by rank: one line each. */
function nested(name, amounts) {
  return Object.entries(amounts).flatMap(([key, amount]) => {
    const which = /bytes_per_s/.test(name) && /^\d+$/.test(key) ? bytes(Number(key)) : plain(key);
    return [el("dt", {}, `${label(name)} · ${which}`), el("dd", {}, value(name, amount))];
  });
}
