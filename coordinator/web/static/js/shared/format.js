// Numbers, sizes, rates, durations and instants as a reader wants them. Pure, but for the reader's language
// and time zone.

const number = (digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits });
const WHOLE = number(0);
const clockTime = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});
const dayAndTime = new Intl.DateTimeFormat(undefined, {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
});
const SIZES = ["B", "KB", "MB", "GB", "TB", "PB"];

const given = (value) => typeof value === "number" && Number.isFinite(value);

/** 11272192 → "11,272,192" */
export function count(value) {
  return given(value) ? WHOLE.format(value) : "–";
}

/** A measured value with as many digits as matter: 1.2072 → "1.207", 0.00002 → "2.00e-5". */
export function measure(value, digits = 4) {
  if (!given(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2).replace("e+", "e");
  return number(Math.max(0, digits - 1 - Math.floor(Math.log10(size)))).format(value);
}

/** 8490000000 → "8.49 GB" (powers of 1000, as rankcall says them everywhere) */
export function bytes(value) {
  if (!given(value)) return "–";
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1000 && unit < SIZES.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? WHOLE.format(size) : measure(size, 3)} ${SIZES[unit]}`;
}

/** GPU memory as its makers and torch say it: powers of 1024. */
export function gib(value) {
  return given(value) ? `${measure(value / 2 ** 30, 3)} GiB` : "–";
}

/** 0.41 → "410 ms", 3.27 → "3.3 s", 1695 → "28 min 15 s", 8000 → "2 h 13 min" */
export function duration(seconds) {
  if (!given(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s === 0) return "0 s";
  if (s < 1e-3) return `${measure(s * 1e6, 2)} µs`;
  if (s < 1) return `${measure(s * 1e3, 2)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 59.5) return `${Math.round(s)} s`;
  const whole = Math.round(s);
  if (whole < 3600) return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  const minutes = Math.round(whole / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
  const hours = Math.round(minutes / 60);
  return `${Math.floor(hours / 24)} d${hours % 24 ? ` ${hours % 24} h` : ""}`;
}

/** A duration that ticks: whole seconds, so that it does not flicker. */
export function ticking(seconds) {
  return duration(seconds < 60 ? Math.floor(Math.max(0, seconds)) : seconds);
}

/** A share of one as "43 %". */
export function percent(share, digits = 0) {
  return given(share) ? `${number(digits).format(share * 100)} %` : "–";
}

/** "14:03:22" */
export function clock(instant) {
  return instant ? clockTime.format(new Date(instant)) : "–";
}

/** "30 Nov, 14:03" */
export function when(instant) {
  return instant ? dayAndTime.format(new Date(instant)) : "–";
}

/** Seconds between two instants (RFC 3339 or milliseconds). */
export function between(from, to) {
  return (new Date(to) - new Date(from)) / 1000;
}

/** "1 replica", "2 replicas" */
export function plural(many, one, more = `${one}s`) {
  return `${count(many)} ${many === 1 ? one : more}`;
}
