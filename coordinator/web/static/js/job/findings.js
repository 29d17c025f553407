// Findings: the worst first, each with its code, what was seen, what to do, the evidence, and on demand what the
// catalogue says of its code.

import { read } from "../shared/api.js";
import { el, icon, plain, prose } from "../shared/dom.js";

const ORDER = { error: 0, warning: 1, note: 2 };
// More of it is in `rankcall job ID --json`.
const MOST_EVIDENCE = 20_000;
const SHORT = 80;

// What the catalogue says, by code, once somebody has asked.
const catalogue = new Map();

/** Fetch what a code means when its explanation is opened; `changed` draws it. */
export function explain(host, changed) {
  const opened = async (event) => {
    const code = event.target.dataset.code;
    if (!code || !event.target.open || catalogue.has(code)) return;
    catalogue.set(code, null);
    try {
      catalogue.set(code, await read(`codes/${encodeURIComponent(code)}`));
    } catch (problem) {
      catalogue.delete(code);
      event.target.querySelector(".explained")?.replaceChildren(problem.message);
    }
    changed();
  };
  // `toggle` does not bubble.
  host.addEventListener("toggle", opened, { capture: true });
}

function example(heading, lines) {
  return lines && [el("p", { class: "muted small" }, heading), el("pre", {}, lines)];
}

function explanation(code) {
  const entry = catalogue.get(code);
  return el(
    "details",
    { key: "explained", "data-code": code },
    el("summary", {}, `What ${code} means`),
    el(
      "div",
      { class: "explained" },
      entry
        ? [
            el("p", { class: "strong" }, entry.title),
            el("p", {}, prose(entry.what)),
            el("p", {}, prose(entry.why)),
            el("p", {}, prose(entry.fix)),
            example("Not this", entry.bad),
            example("But this", entry.good),
          ]
        : el("p", { class: "muted" }, `rankcall explain ${code}`),
    ),
  );
}

function where(found, names) {
  const file = found.file && `${found.file}${found.line ? `:${found.line}` : ""}`;
  const replica = found.replica && (names.get(found.replica) ?? found.replica);
  return [found.stage, replica, file, found.key]
    .filter(Boolean)
    .map((part) => el("span", { class: "tag" }, el("bdi", {}, plain(part))));
}

function words(value) {
  const line = (one) => (typeof one === "string" ? one : JSON.stringify(one));
  const text = Array.isArray(value)
    ? value.map(line).join("\n")
    : typeof value === "object"
      ? JSON.stringify(value, null, 2)
      : String(value);
  if (text === "") return "none";
  return plain(text.length > MOST_EVIDENCE ? `${text.slice(0, MOST_EVIDENCE)}\n…` : text);
}

function evidence(found, open) {
  const items = Object.entries(found.evidence ?? {})
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => ({ name: plain(name).replaceAll("_", " "), text: words(value) }));
  if (items.length === 0) return null;
  const short = items.filter(({ text }) => text.length <= SHORT && !text.includes("\n"));
  const long = items.filter((item) => !short.includes(item));
  return el(
    "details",
    { key: "evidence", open },
    el("summary", {}, "Evidence"),
    short.length > 0 &&
      el(
        "dl",
        { class: "pairs" },
        short.map(({ name, text }) => [el("dt", {}, name), el("dd", { class: "mono" }, text)]),
      ),
    long.length > 0 &&
      el(
        "dl",
        { class: "evidence" },
        long.map(({ name, text }) => [
          el("dt", {}, name),
          el("dd", {}, el("pre", { tabindex: "0", "aria-label": name }, text)),
        ]),
      ),
  );
}

function card(found, key, names, open) {
  return el(
    "article",
    { class: "finding", key, "data-severity": found.severity },
    icon(found.severity, { title: found.severity }),
    el(
      "div",
      { class: "finding-body" },
      el(
        "div",
        { class: "finding-head" },
        el("span", { class: "code mono" }, found.code),
        where(found, names),
      ),
      el("p", { class: "finding-message" }, prose(found.message)),
      found.hint && el("p", { class: "finding-hint" }, prose(found.hint)),
      evidence(found, open),
      explanation(found.code),
    ),
  );
}

const worstFirst = (found) =>
  [...found].sort((a, b) => (ORDER[a.severity] ?? 3) - (ORDER[b.severity] ?? 3));

/** The rank that the first error of the job is about, where it is one of this attempt; else null. */
export function blamed(job, attempt) {
  const first = worstFirst(job.findings).find((found) => found.severity === "error");
  return attempt.members.find((member) => member.replica_id === first?.replica)?.rank ?? null;
}

/** Cards for all findings of the job; the evidence of the first error is open. */
export function findings(job, attempt) {
  const names = new Map(
    (attempt?.members ?? []).map((member) => [
      member.replica_id,
      `rank ${member.rank} · ${member.hostname || member.replica_id}`,
    ]),
  );
  const cards = worstFirst(job.findings).map((found, index) =>
    card(found, `${found.code}-${index}`, names, index === 0 && found.severity === "error"),
  );
  return el("div", { class: "findings" }, cards);
}
