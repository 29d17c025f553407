// The result's files: where they lie, how big they are, their hash, and a download through the coordinator.

import { el, icon, plain } from "../shared/dom.js";
import { bytes, plural } from "../shared/format.js";
import { api } from "../shared/site.js";

const FIRST = { model: 0, adapter: 0, tokenizer: 1, config: 2, other: 3 };

/** The folder that all files lie in, with its slash; "" when there is none. */
function sharedFolder(paths) {
  let folder = paths[0].slice(0, paths[0].lastIndexOf("/") + 1);
  while (!paths.every((path) => path.startsWith(folder)))
    folder = folder.slice(0, folder.lastIndexOf("/", folder.length - 2) + 1);
  return folder;
}

function download(job, artifact, file, reachable) {
  if (!reachable) return el("span", { class: "muted small" }, "its replica is not here");
  const href = api(
    `jobs/${encodeURIComponent(job.id)}/artifacts/${encodeURIComponent(artifact.id)}`,
  ).pathname;
  return el(
    "a",
    {
      class: "button small",
      href,
      download: file.split("/").at(-1),
      "aria-label": `Download ${plain(file)}`,
    },
    icon("download"),
    el("span", {}, "Download"),
  );
}

function row(job, artifact, folder, reachable) {
  const file = artifact.path.slice(folder.length);
  return el(
    "li",
    { class: "artifact", key: artifact.id },
    el(
      "div",
      { class: "artifact-name" },
      el("bdi", { class: "mono" }, plain(file)),
      artifact.kind !== "other" && el("span", { class: "tag" }, artifact.kind),
    ),
    el("span", { class: "artifact-size figure" }, bytes(artifact.size_bytes)),
    el(
      "button",
      {
        class: "copy mono small artifact-hash",
        type: "button",
        "data-do": "copy",
        "data-text": artifact.sha256,
        title: `SHA-256 ${artifact.sha256}: copy it`,
      },
      `sha256 ${artifact.sha256.slice(0, 12)}…`,
      icon("copy"),
    ),
    download(job, artifact, file, reachable),
  );
}

/** Where the result is, and its files, the model first. A file can be had while its replica is here. */
export function artifacts(job, replicas) {
  const gone = new Set(replicas.filter((replica) => !replica.alive).map((replica) => replica.id));
  const sorted = [...job.artifacts].sort(
    (a, b) => (FIRST[a.kind] ?? 4) - (FIRST[b.kind] ?? 4) || b.size_bytes - a.size_bytes,
  );
  const total = sorted.reduce((sum, artifact) => sum + artifact.size_bytes, 0);
  const folder = sharedFolder(sorted.map((artifact) => artifact.path));
  const host = sorted[0].hostname || sorted[0].replica_id;
  return [
    el(
      "p",
      { class: "muted" },
      `${plural(sorted.length, "file")}, ${bytes(total)}`,
      job.result_folder && [", in ", el("code", {}, el("bdi", {}, plain(job.result_folder)))],
      " on ",
      el("bdi", {}, plain(host)),
      ". Take it with you before the replica goes: ",
      el("code", {}, `rankcall artifacts ${job.id}`),
    ),
    el(
      "ul",
      { class: "rows" },
      sorted.map((artifact) => row(job, artifact, folder, !gone.has(artifact.replica_id))),
    ),
  ];
}
