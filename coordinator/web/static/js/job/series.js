// The training's records by attempt and rank, ready to be drawn. Takes them in any order and more than once
// (the stream is replayed after a pause), keeps each step once.

/** What can be drawn: the record's key, its name, and whether a logarithmic look would make sense. */
const MEASURES = [
  { key: "loss", name: "Loss", train: "loss", evaluated: "eval_loss" },
  { key: "perplexity", name: "Perplexity", train: "perplexity" },
  { key: "learning_rate", name: "Learning rate", train: "learning_rate" },
  { key: "grad_norm", name: "Gradient norm", train: "grad_norm" },
  { key: "tokens_per_s", name: "Tokens/s", train: "tokens_per_s" },
  { key: "step_s", name: "Time a step", train: "step_s" },
  { key: "memory_bytes", name: "Memory", train: "memory_bytes" },
];

class Line {
  steps = [];
  values = [];

  put(step, value) {
    const end = this.steps.length;
    if (end === 0 || step > this.steps[end - 1]) {
      this.steps.push(step);
      this.values.push(value);
      return;
    }
    // A late or repeated record: rare, so a search is cheap enough.
    let low = 0;
    let high = end;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle] < step) low = middle + 1;
      else high = middle;
    }
    const known = this.steps[low] === step;
    this.steps.splice(low, known ? 1 : 0, step);
    this.values.splice(low, known ? 1 : 0, value);
  }
}

export class Series {
  #seen = new Set();
  #attempts = new Map();
  version = 0;

  /** Whether there is anything to draw. */
  get any() {
    return this.#attempts.size > 0;
  }

  /** Take a MetricView. */
  add(record) {
    if (this.#seen.has(record.id) || record.step === null || record.step === undefined) return;
    this.#seen.add(record.id);
    const keys =
      record.type === "eval"
        ? ["eval_loss"]
        : record.type === "log"
          ? MEASURES.map((measure) => measure.train)
          : [];
    for (const key of keys) {
      const value = record.values[key];
      if (typeof value === "number" && Number.isFinite(value))
        this.#line(record.attempt, record.rank, key).put(record.step, value);
    }
    this.version += 1;
  }

  #line(attempt, rank, key) {
    const ranks = this.#attempts.get(attempt) ?? new Map();
    this.#attempts.set(attempt, ranks);
    const lines = ranks.get(rank) ?? new Map();
    ranks.set(rank, lines);
    const line = lines.get(key) ?? new Line();
    lines.set(key, line);
    return line;
  }

  /** Ranks of an attempt that have sent records, in their order. */
  ranks(attempt) {
    return [...(this.#attempts.get(attempt)?.keys() ?? [])].sort((a, b) => a - b);
  }

  /** The line of one rank, or null. */
  line(attempt, rank, key) {
    return this.#attempts.get(attempt)?.get(rank)?.get(key) ?? null;
  }

  /** Measures of which an attempt has at least one value. */
  measures(attempt) {
    const ranks = [...(this.#attempts.get(attempt)?.values() ?? [])];
    return MEASURES.filter((measure) =>
      ranks.some((lines) => lines.has(measure.train) || (measure.evaluated && lines.has(measure.evaluated))),
    );
  }
}
