// What may be done with a job: cancel it, after a question; try it again; copy an id or a hash.

import { send } from "../shared/api.js";
import { fill } from "../shared/dom.js";
import { say } from "../shared/top.js";

function sure(job) {
  const dialog = document.getElementById("confirm");
  fill(document.getElementById("confirm-title"), "Cancel this job?");
  fill(
    document.getElementById("confirm-text"),
    `“${job.name || job.id}” is ended on every replica. What it has trained since its last checkpoint is lost; logs and metrics stay.`,
  );
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

/** `cancel` or `retry`; a refusal is said at the top of the page. The live stream shows what follows. */
export async function act(verb, job) {
  if (job === null || (verb === "cancel" && !(await sure(job)))) return;
  const button = document.querySelector(`[data-do="${verb}"]`);
  if (button) button.disabled = true;
  try {
    await send(`jobs/${encodeURIComponent(job.id)}/${verb}`);
    say(null);
  } catch (problem) {
    say(problem);
  } finally {
    if (button) button.disabled = false;
  }
}

/** Copy a button's `data-text`. Where the clipboard is refused (no TLS), select it for copying by hand. */
export async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.text);
    button.dataset.copied = "yes";
    setTimeout(() => delete button.dataset.copied, 1200);
  } catch {
    say(`Copy this by hand: ${button.dataset.text}`);
  }
}
