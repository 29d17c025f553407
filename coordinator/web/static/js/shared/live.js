// A live event stream and its state. EventSource reconnects by itself with Last-Event-ID; this adds what it
// leaves out: it says when the link is down, tries again when the browser has given up (a proxy's error page,
// a refused session), and lets go of the connection while nobody looks (a browser allows six to one host).

import { ask, now } from "./api.js";

// A tab in the background keeps its streams for so long.
const HIDDEN_MS = 30_000;
const RETRY_MS = [1000, 2000, 4000, 8000];

/** Call `hidden` when nobody has looked for a while, and `seen` when somebody does again. Returns how to stop. */
export function whileSeen({ hidden, seen }) {
  let timer = null;
  let away = false;
  function changed() {
    clearTimeout(timer);
    if (document.hidden) {
      timer = setTimeout(() => {
        away = true;
        hidden();
      }, HIDDEN_MS);
    } else if (away) {
      away = false;
      seen();
    }
  }
  document.addEventListener("visibilitychange", changed);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", changed);
  };
}

/**
 * Subscribe to `url`. `on` maps event types to functions of the parsed data; `state` is told "connecting",
 * "live", "reconnecting", "paused" or "refused". After a pause or a give-up the stream starts anew (without
 * Last-Event-ID): `on` may see an event again and must not mind.
 */
export function live(url, on, state) {
  let source = null;
  let timer = null;
  let failures = 0;

  function open() {
    clearTimeout(timer);
    source = new EventSource(url);
    source.onopen = () => {
      failures = 0;
      state("live");
    };
    source.onerror = () => {
      state("reconnecting");
      if (source.readyState === EventSource.CLOSED) again();
    };
    for (const [type, handle] of Object.entries(on)) {
      source.addEventListener(type, (event) => handle(JSON.parse(event.data)));
    }
  }

  function close() {
    clearTimeout(timer);
    source?.close();
  }

  function again() {
    close();
    timer = setTimeout(retry, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
    failures += 1;
  }

  // EventSource does not say why it was refused. A plain request does, and leads to sign-in if it must.
  async function retry() {
    const probe = new AbortController();
    try {
      await ask(url, { signal: probe.signal, headers: { Accept: "text/event-stream" } });
      probe.abort();
      open();
    } catch (problem) {
      if (problem.status === 404 || problem.status === 403) state("refused", problem);
      else again();
    }
  }

  whileSeen({
    hidden() {
      close();
      state("paused");
    },
    seen() {
      state("connecting");
      open();
    },
  });
  // A page that the browser froze and brings back has a dead stream and does not know it.
  window.addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    close();
    open();
  });
  state("connecting");
  open();
}

// Drawing may take a fifth of the time, so that a page with a thousand replicas still scrolls.
const DRAW_SHARE = 5;

/** `draw`, to be asked for as often as one likes: a burst is one drawing, and a costly one comes less often. */
export function paced(draw) {
  let asked = false;
  let notBefore = 0;
  function drawNow() {
    asked = false;
    const began = performance.now();
    draw();
    notBefore = began + DRAW_SHARE * (performance.now() - began);
  }
  return () => {
    if (asked) return;
    asked = true;
    const wait = notBefore - performance.now();
    if (wait > 16) setTimeout(() => requestAnimationFrame(drawNow), wait);
    else requestAnimationFrame(drawNow);
  };
}

/** Call `tick` each second while the page is visible, for durations that grow by themselves. */
export function everySecond(tick) {
  setInterval(() => {
    if (!document.hidden) tick(now());
  }, 1000);
}
