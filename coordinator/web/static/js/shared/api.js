// Asking the coordinator. One way to send a request and one kind of error: a Problem, which says what went
// wrong in the coordinator's own words. Also keeps the difference between this clock and the coordinator's.

import { api, signIn } from "./site.js";

let offset_ms = 0;

/** Milliseconds since the epoch on the coordinator's clock: durations of what runs are judged by it. */
export function now() {
  return Date.now() + offset_ms;
}

function noteClock(response) {
  const date = Date.parse(response.headers.get("date") ?? "");
  // The header has whole seconds; a smaller difference is none.
  if (Number.isFinite(date)) offset_ms = Math.abs(date - Date.now()) > 2000 ? date - Date.now() : 0;
}

/** What the coordinator refused, or that it could not be reached (`status` 0). */
export class Problem extends Error {
  constructor(status, title, hint = "", code = null) {
    super(title);
    this.status = status;
    this.hint = hint;
    this.code = code;
  }
}

async function problemOf(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // A proxy in between answers in HTML: its status has to do.
  }
  const title = body.detail || body.title || `The coordinator answered ${response.status}.`;
  return new Problem(response.status, title, body.hint ?? "", body.code ?? null);
}

/** fetch, with refusals as Problems; a missing session leads to the sign-in page. */
export async function ask(url, options = {}) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The coordinator cannot be reached.", "The page tries again by itself.");
  }
  noteClock(response);
  if (response.ok) return response;
  if (response.status === 401 && !options.stay) {
    signIn();
    // The page is leaving: whoever asked needs no answer any more.
    return new Promise(() => {});
  }
  throw await problemOf(response);
}

/** GET as JSON. */
export async function read(path, query = {}, options = {}) {
  return (await ask(api(path, query), { headers: { Accept: "application/json" }, ...options })).json();
}

/** Who this browser is: `{role, open}`; `open` where no token is configured and nobody signs in. */
export async function whoAmI() {
  return read("session", {}, { stay: true }).catch(() => ({ role: "none", open: true }));
}

/** POST (or another method) with a JSON body; the answer as JSON, or null when there is none. */
export async function send(path, body = null, { method = "POST", stay = false } = {}) {
  const headers = { Accept: "application/json" };
  if (body !== null) headers["Content-Type"] = "application/json";
  const response = await ask(api(path), {
    method,
    headers,
    body: body === null ? null : JSON.stringify(body),
    stay,
  });
  return response.status === 204 ? null : response.json().catch(() => null);
}
