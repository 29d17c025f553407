// The curve: one line a rank, the evaluations on top; the measure and the ranks are the reader's choice. Drawn by
// uPlot on a canvas; what it shows is also said in words, and the arrow keys walk along it.

import uPlot from "../../vendor/uplot/uPlot.esm.js";
import { el, fill, listen } from "../shared/dom.js";
import { bytes, count, duration, measure as figure } from "../shared/format.js";

const HEIGHT = 260;
const LINES = 8;

function format(key, value) {
  if (value === null || value === undefined) return "–";
  if (key === "memory_bytes") return bytes(value);
  if (key === "step_s") return duration(value);
  return key === "tokens_per_s" ? count(Math.round(value)) : figure(value);
}

export class Chart {
  #series;
  #host;
  #tools;
  #said;
  #canvas;
  #plot = null;
  #shape = "";
  #drawn = -1;
  #measure = "loss";
  #hidden = new Set();
  #attempt = null;

  constructor(host, series) {
    this.#host = host;
    this.#series = series;
    this.#tools = el("div", { class: "chart-tools" });
    this.#said = el("p", { class: "chart-said figure", "aria-live": "polite" });
    this.#canvas = el("div", {
      class: "chart-canvas",
      tabindex: "0",
      role: "group",
      "aria-roledescription": "chart",
    });
    host.append(this.#tools, this.#said, this.#canvas);
    listen(host, {
      measure: (button) => this.#choose(button.dataset.name),
      rank: (button) => this.#toggle(Number(button.dataset.rank)),
    });
    this.#canvas.addEventListener("keydown", (event) => this.#walk(event));
    new ResizeObserver(() =>
      this.#plot?.setSize({ width: this.#canvas.clientWidth, height: HEIGHT }),
    ).observe(this.#canvas);
  }

  /** Draw an attempt; nothing happens where nothing is new. */
  show(attempt) {
    if (attempt === this.#attempt && this.#series.version === this.#drawn) return;
    this.#attempt = attempt;
    this.#draw();
  }

  /** The colour scheme has changed. */
  recolour() {
    this.#shape = "";
    if (this.#attempt !== null) this.#draw();
  }

  #choose(name) {
    this.#measure = name;
    this.#draw();
  }

  #toggle(rank) {
    const ranks = this.#series.ranks(this.#attempt);
    if (this.#hidden.has(rank)) this.#hidden.delete(rank);
    else this.#hidden.add(rank);
    // With none left there is nothing to see: back to all.
    if (ranks.every((one) => this.#hidden.has(one))) this.#hidden.clear();
    this.#draw();
  }

  #draw() {
    this.#drawn = this.#series.version;
    const measures = this.#series.measures(this.#attempt);
    this.#host.hidden = measures.length === 0;
    if (measures.length === 0) return;
    const measure = measures.find((one) => one.key === this.#measure) ?? measures[0];
    const ranks = this.#series.ranks(this.#attempt);
    const lines = this.#lines(measure, ranks);
    fill(this.#tools, this.#controls(measures, measure, ranks));
    // The lowest rank lies on top of the others, the evaluations on top of all.
    const drawn = [
      ...lines.filter(({ evaluated }) => !evaluated).reverse(),
      ...lines.filter(({ evaluated }) => evaluated),
    ];
    const data = drawn.length > 0 ? uPlot.join(drawn.map(({ line }) => [line.steps, line.values])) : [[]];
    const shape = JSON.stringify([this.#attempt, measure.key, lines.map(({ name }) => name)]);
    if (this.#plot === null || shape !== this.#shape) this.#build(measure, drawn, data);
    else this.#plot.setData(data);
    this.#shape = shape;
    this.#sayLast(measure, lines);
  }

  #lines(measure, ranks) {
    const shown = ranks.filter((rank) => !this.#hidden.has(rank));
    const lines = shown.map((rank) => ({
      name: ranks.length > 1 ? `rank ${rank}` : measure.name.toLowerCase(),
      line: this.#series.line(this.#attempt, rank, measure.train),
      colour: `--line-${rank % LINES}`,
    }));
    if (measure.evaluated) {
      // All ranks take part in one evaluation; the lowest of them tells.
      const rank = ranks.find((one) => this.#series.line(this.#attempt, one, measure.evaluated));
      if (rank !== undefined)
        lines.push({
          name: "evaluation",
          line: this.#series.line(this.#attempt, rank, measure.evaluated),
          colour: "--line-eval",
          evaluated: true,
        });
    }
    return lines.filter(({ line }) => line !== null);
  }

  #controls(measures, chosen, ranks) {
    return [
      el(
        "div",
        { class: "segmented", role: "group", "aria-label": "What is drawn" },
        measures.map((one) =>
          el(
            "button",
            {
              type: "button",
              key: one.key,
              "data-do": "measure",
              "data-name": one.key,
              "aria-pressed": String(one === chosen),
            },
            one.name,
          ),
        ),
      ),
      ranks.length > 1 &&
        el(
          "div",
          { class: "chips", role: "group", "aria-label": "Ranks" },
          ranks.map((rank) =>
            el(
              "button",
              {
                type: "button",
                class: "chip",
                key: String(rank),
                "data-do": "rank",
                "data-rank": rank,
                "data-line": rank % LINES,
                "aria-pressed": String(!this.#hidden.has(rank)),
              },
              `rank ${rank}`,
            ),
          ),
        ),
    ];
  }

  #build(measure, lines, data) {
    this.#plot?.destroy();
    const css = getComputedStyle(document.documentElement);
    const colour = (name) => css.getPropertyValue(name).trim();
    const axis = {
      stroke: colour("--muted"),
      font: "12px Inter, sans-serif",
      grid: { stroke: colour("--line-soft"), width: 1 },
      ticks: { show: false },
    };
    this.#plot = new uPlot(
      {
        width: this.#canvas.clientWidth || 600,
        height: HEIGHT,
        scales: { x: { time: false }, y: { range: (_, low, high) => padded(low, high) } },
        legend: { show: false },
        cursor: { points: { size: 7 }, drag: { x: true, y: false } },
        axes: [
          {
            ...axis,
            size: 30,
            space: 60,
            values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? count(tick) : "")),
          },
          { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => format(measure.key, tick)) },
        ],
        series: [
          {},
          ...lines.map(({ name, colour: line, evaluated }) => ({
            label: name,
            stroke: colour(line),
            width: evaluated ? 1.25 : 1.6,
            dash: evaluated ? [3, 4] : undefined,
            spanGaps: true,
            points: { show: evaluated ? true : undefined, size: 8, fill: colour("--surface"), width: 2 },
          })),
        ],
        hooks: { setCursor: [(plot) => this.#sayAt(measure, plot)] },
      },
      data,
      this.#canvas,
    );
  }

  #sayAt(measure, plot) {
    const { idx } = plot.cursor;
    if (idx === null || idx === undefined) {
      this.#sayLast(measure);
      return;
    }
    const values = new Map(
      plot.series.slice(1).map((series, index) => [series.label, plot.data[index + 1][idx]]),
    );
    const parts = this.#lines(measure, this.#series.ranks(this.#attempt)).map(({ name }) => ({
      name,
      value: values.get(name),
    }));
    this.#say(
      measure,
      `step ${count(plot.data[0][idx])}`,
      parts.filter(({ value }) => value !== null && value !== undefined),
    );
  }

  #sayLast(measure, lines = this.#lines(measure, this.#series.ranks(this.#attempt))) {
    const last = lines.filter(({ line }) => line.values.length > 0);
    const parts = last.slice(0, LINES + 1).map(({ name, line }) => ({ name, value: line.values.at(-1) }));
    const step = Math.max(...last.map(({ line }) => line.steps.at(-1)));
    if (last.length === 0) return;
    const { line } = last[0];
    this.#canvas.setAttribute(
      "aria-label",
      `${measure.name} over ${count(step)} steps, from ${format(measure.key, line.values[0])} to ${format(measure.key, line.values.at(-1))}. Use the arrow keys to read single steps.`,
    );
    this.#say(measure, `last, step ${count(step)}`, parts);
  }

  #say(measure, where, parts) {
    fill(
      this.#said,
      el("span", { class: "muted" }, where),
      parts.map(({ name, value }) =>
        el(
          "span",
          { class: "said-part" },
          el("span", { class: "muted" }, name),
          " ",
          format(measure.key, value),
        ),
      ),
    );
  }

  #walk(event) {
    const steps = this.#plot?.data[0] ?? [];
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined || steps.length === 0) return;
    event.preventDefault();
    const here = this.#plot.cursor.idx ?? steps.length - 1;
    const index = Math.min(steps.length - 1, Math.max(0, here + move));
    this.#plot.setCursor({ left: this.#plot.valToPos(steps[index], "x"), top: HEIGHT / 2 });
  }
}

/** A little air above and below; a flat line lies in the middle. */
function padded(low, high) {
  if (low === null || high === null) return [0, 1];
  const air = (high - low || Math.abs(high) || 1) * 0.08;
  return [low >= 0 && low - air < 0 ? 0 : low - air, high + air];
}
