// What must be there before the page itself, hence a classic script in the head: the colour scheme that somebody
// chose, applied before the first paint (the button is wired in shared/top.js), and another try for a page whose
// scripts did not all arrive over a bad link.
"use strict";
(() => {
  const MOST_TRIES = 5;
  const WAIT_MS = 1500;

  /** Storage may be forbidden; then nothing is remembered. */
  function attempt(action, otherwise = null) {
    try {
      return action();
    } catch {
      return otherwise;
    }
  }

  const chosen = attempt(() => localStorage.getItem("rankcall.theme"));
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

  // A module fails with those it imports, and says so by an event that does not bubble.
  window.addEventListener(
    "error",
    (event) => {
      if (!(event.target instanceof HTMLScriptElement)) return;
      const tries = attempt(() => Number(sessionStorage.getItem("rankcall.tries") ?? 0), MOST_TRIES);
      if (tries >= MOST_TRIES) return;
      attempt(() => sessionStorage.setItem("rankcall.tries", String(tries + 1)));
      setTimeout(() => location.reload(), WAIT_MS);
    },
    { capture: true },
  );
})();
