// The colour scheme somebody chose, applied before the first paint (a classic script in the head for that
// reason). Nothing chosen: the system's. The button itself is wired in shared/top.js.
"use strict";
(() => {
  try {
    const chosen = localStorage.getItem("rankcall.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is forbidden: the system's scheme it is.
  }
})();
