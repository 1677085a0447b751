// Curves over rounds, drawn by uPlot; each has its legend above it, with the value under the pointer.

/* global uPlot */

const HEIGHT = 200;
const ROUND_TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function made(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

export class Chart {
  // `curves` are {label, value(point), bars}; `show(value)` writes a number with its unit, `axis`
  // one beside the axis, where `ticks` are the steps between two of them.
  constructor({ title, empty, curves, show, axis = show, ticks, fromZero = false }) {
    Object.assign(this, { title, curves, show, axis, ticks, fromZero });
    this.element = made("section", "card chart");
    this.heading = made("h3", "", title);
    this.legend = made("ul", "legend");
    this.plot = made("div", "plot empty", empty);
    this.plot.setAttribute("role", "img");
    this.element.append(this.heading, this.legend, this.plot);
    this.points = [];
    this.drawn = null;
    new ResizeObserver(() => this.drawn?.setSize(this.size())).observe(this.plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  // Names it anew.
  entitle(title) {
    if (title === this.title) return;
    this.title = this.heading.textContent = title;
    this.take(this.points);
  }

  // Says why there is nothing to draw.
  explain(text) {
    if (!this.drawn) this.plot.textContent = text;
  }

  size() {
    return { width: this.plot.clientWidth, height: HEIGHT };
  }

  take(points) {
    this.points = points.filter((point) => this.curves.some((curve) => curve.value(point) !== null));
    if (this.points.length === 0) return;
    if (this.drawn) this.drawn.setData(this.data());
    else this.redraw();
    this.tell(null);
    const last = this.points[this.points.length - 1];
    const said = this.curves.map((curve) => `${curve.label} ${this.written(curve, last)}`).join(", ");
    this.plot.setAttribute("aria-label", `${this.title}; round ${last.round}: ${said}`);
  }

  data() {
    return [
      this.points.map((point) => point.round),
      ...this.curves.map((curve) => this.points.map((point) => curve.value(point))),
    ];
  }

  redraw() {
    if (this.points.length === 0) return;
    this.drawn?.destroy();
    this.plot.className = "plot";
    this.plot.textContent = "";
    const [ink, line] = [colour("--quiet"), colour("--line")];
    const drawnAxis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const font = "12px system-ui, sans-serif";
    this.drawn = new uPlot(
      {
        ...this.size(),
        legend: { show: false },
        padding: [10, 14, 0, 0],
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
        scales: {
          x: { time: false, range: (u, low, high) => aroundRounds(low, high) },
          y: { range: (u, low, high) => aroundValues(low, high, this.fromZero) },
        },
        axes: [
          { ...drawnAxis, font, incrs: ROUND_TICKS, size: 34, grid: { show: false } },
          { ...drawnAxis, font, size: 62, ...(this.ticks && { incrs: this.ticks }), values: (u, splits) => splits.map((value) => this.axis(value)) },
        ],
        series: [
          {},
          ...this.curves.map((curve, index) => ({
            label: curve.label,
            stroke: colour(index ? "--second" : "--first"),
            fill: curve.bars ? colour(index ? "--second" : "--first") : undefined,
            width: curve.bars ? 0 : 2,
            spanGaps: true,
            paths: curve.bars ? uPlot.paths.bars({ size: [0.65, 28] }) : undefined,
            points: { show: curve.bars ? false : (u) => u.data[0].length < 30, size: 6 },
          })),
        ],
        hooks: { setCursor: [(u) => this.tell(u.cursor.idx)] },
      },
      this.data(),
      this.plot,
    );
  }

  // Writes the values of a round into the legend, or those of the last one.
  tell(index) {
    const point = this.points[index ?? this.points.length - 1];
    if (!point) return;
    const items = this.curves.map((curve, place) => {
      const item = made("li");
      item.append(made("span", place ? "key second" : "key"), `${curve.label} `);
      item.append(made("strong", "", this.written(curve, point)));
      return item;
    });
    items.push(made("li", "", `round ${point.round}`));
    this.legend.replaceChildren(...items);
  }

  written(curve, point) {
    const value = curve.value(point);
    return value === null ? "–" : this.show(value);
  }
}

function aroundRounds(low, high) {
  return low === high ? [low - 1, high + 1] : [low - 0.5, high + 0.5];
}

function aroundValues(low, high, fromZero) {
  if (low === null || high === null) return [0, 1];
  if (fromZero) return [0, high > 0 ? high * 1.08 : 1];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [Math.max(low >= 0 ? 0 : -Infinity, low - room), high + room];
}
