// The bar at the top of every page: the state of the link, the colour scheme, signing out.

import { Problem, send } from "./api.js";
import { fill } from "./dom.js";
import { at } from "./site.js";

const WORDS = {
  connecting: "connecting…",
  live: "live",
  reconnecting: "reconnecting…",
  paused: "paused",
  refused: "not connected",
  ended: "",
};

/** Show the state of the link. */
export function showLink(state) {
  const link = document.getElementById("link");
  if (link.dataset.state === state) return;
  link.dataset.state = state;
  fill(link, WORDS[state] ?? state);
}

let unreachable = false;

/** The coordinator answers again: take away the word that it did not. */
export function healed() {
  if (unreachable) say(null);
}

/** Say a problem at the top of the page; null takes it away. */
export function say(problem) {
  unreachable = problem instanceof Problem && problem.status === 0;
  const said = document.getElementById("said");
  if (!said) return;
  const words =
    problem instanceof Problem ? [problem.message, problem.hint].filter(Boolean).join(" ") : problem;
  fill(said, words ?? "");
}

const NEXT = { system: "light", light: "dark", dark: "system" };

function showTheme(button, theme) {
  const words = `Colour scheme: ${theme}`;
  button.setAttribute("aria-label", words);
  button.title = words;
}

/** Wire the buttons; `changed` is called when the colours have. */
export function top(changed = () => {}) {
  try {
    // All scripts have arrived (see boot.js).
    sessionStorage.removeItem("rankcall.tries");
  } catch {
    // Nothing was remembered.
  }
  const root = document.documentElement;
  const button = document.getElementById("theme");
  showTheme(button, root.dataset.theme ?? "system");
  button.addEventListener("click", () => {
    const theme = NEXT[root.dataset.theme ?? "system"];
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    try {
      localStorage.setItem("rankcall.theme", theme);
    } catch {
      // Not kept, then.
    }
    showTheme(button, theme);
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  const out = document.getElementById("sign-out");
  out.addEventListener("click", async () => {
    await send("session", null, { method: "DELETE", stay: true }).catch(() => null);
    location.assign(at("sign-in"));
  });
}

/** Offer to sign out where somebody is signed in. */
export function signedIn({ role, open }) {
  document.getElementById("sign-out").hidden = open || role === "none";
}
