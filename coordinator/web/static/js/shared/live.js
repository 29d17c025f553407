// A live event stream and its state. EventSource reconnects by itself with Last-Event-ID; this adds what it
// leaves out: it says when the link is down, tries again when the browser has given up (a proxy's error page,
// a refused session), and lets go of the connection while nobody looks (a browser allows six to one host).

import { ask, now } from "./api.js";

// A tab in the background keeps its stream for so long.
const HIDDEN_MS = 30_000;
const RETRY_MS = [1000, 2000, 4000, 8000];

/**
 * Subscribe to `url`. `on` maps event types to functions of the parsed data; `state` is told "connecting",
 * "live", "reconnecting" or "paused". After a pause or a give-up the stream starts anew (no Last-Event-ID): `on`
 * may see an event again and must not mind. Returns a function that ends it.
 */
export function live(url, on, state) {
  let source = null;
  let timer = null;
  let failures = 0;
  let ended = false;

  function open() {
    if (ended) return;
    clearTimeout(timer);
    source = new EventSource(url);
    source.onopen = () => {
      failures = 0;
      state("live");
    };
    source.onerror = () => {
      if (ended) return;
      state("reconnecting");
      if (source.readyState === EventSource.CLOSED) again();
    };
    for (const [type, handle] of Object.entries(on)) {
      source.addEventListener(type, (event) => handle(JSON.parse(event.data), event));
    }
  }

  async function again() {
    source.close();
    const wait = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)];
    failures += 1;
    timer = setTimeout(async () => {
      // EventSource does not say why it was refused. A plain request does, and leads to sign-in if it must.
      const probe = new AbortController();
      try {
        await ask(url, { signal: probe.signal, headers: { Accept: "text/event-stream" } });
        probe.abort();
        open();
      } catch (problem) {
        if (problem.status === 404 || problem.status === 403) {
          state("refused", problem);
          return;
        }
        again();
      }
    }, wait);
  }

  function close() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  let hidden = null;
  function seen() {
    clearTimeout(hidden);
    if (document.hidden) {
      hidden = setTimeout(() => {
        close();
        state("paused");
      }, HIDDEN_MS);
    } else if (source === null && !ended) {
      state("connecting");
      open();
    }
  }

  document.addEventListener("visibilitychange", seen);
  // A page that the browser froze and brings back has a dead stream and does not know it.
  window.addEventListener("pageshow", (event) => {
    if (event.persisted && !ended) {
      close();
      open();
    }
  });
  state("connecting");
  open();
  return () => {
    ended = true;
    document.removeEventListener("visibilitychange", seen);
    close();
  };
}

/** Call `tick` each second while the page is visible, for durations that grow by themselves. */
export function everySecond(tick) {
  const timer = setInterval(() => {
    if (!document.hidden) tick(now());
  }, 1000);
  return () => clearInterval(timer);
}
