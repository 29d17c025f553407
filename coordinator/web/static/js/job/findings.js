// Findings: the worst first, each with its code, what was seen, what to do, and the evidence on demand.

import { el, icon, plain } from "../shared/dom.js";

const ORDER = { error: 0, warning: 1, note: 2 };
// More lines of evidence are in `rankcall job ID --json`.
const MOST_EVIDENCE = 20_000;

function where(found, names) {
  const file = found.file && `${found.file}${found.line ? `:${found.line}` : ""}`;
  const replica = found.replica && (names.get(found.replica) ?? found.replica);
  return [found.stage, replica, file, found.key].filter(Boolean).map((part) => el("span", { class: "tag" }, el("bdi", {}, plain(part))));
}

function evidence(value) {
  const text = Array.isArray(value) ? value.map((line) => (typeof line === "string" ? line : JSON.stringify(line))).join("\n") : typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return plain(text.length > MOST_EVIDENCE ? `${text.slice(0, MOST_EVIDENCE)}\n…` : text);
}

function card(found, index, names) {
  const items = Object.entries(found.evidence ?? {}).filter(([, value]) => value !== null);
  return el(
    "article",
    { class: "finding", key: `${found.code}-${index}`, "data-severity": found.severity },
    icon(found.severity),
    el(
      "div",
      { class: "finding-body" },
      el("div", { class: "finding-head" }, el("span", { class: "code mono" }, found.code), el("span", { class: "visually-hidden" }, found.severity), where(found, names)),
      el("p", { class: "finding-message" }, plain(found.message)),
      found.hint && el("p", { class: "finding-hint" }, plain(found.hint)),
      items.length > 0 &&
        el(
          "details",
          {},
          el("summary", {}, "Evidence"),
          el("dl", { class: "evidence" }, items.map(([name, value]) => [el("dt", {}, plain(name).replaceAll("_", " ")), el("dd", {}, el("pre", { tabindex: "0" }, evidence(value)))])),
        ),
      el("p", { class: "muted small" }, "More: ", el("code", {}, `rankcall explain ${found.code}`)),
    ),
  );
}

/** Cards for all findings of the job. */
export function findings(job, attempt) {
  const names = new Map((attempt?.members ?? []).map((member) => [member.replica_id, `rank ${member.rank} · ${member.hostname || member.replica_id}`]));
  const sorted = [...job.findings].sort((a, b) => (ORDER[a.severity] ?? 3) - (ORDER[b.severity] ?? 3));
  return el("div", { class: "findings" }, sorted.map((found, index) => card(found, index, names)));
}
