// Charts of the records, by Observable Plot: from the data that report/charts.py describes, in the page and for README.

import * as Plot from "@observablehq/plot";

type Told<T> = [value: T, series: number, words: string];
interface Bars {
  kind: "bars";
  rows: { label: string; parts: Told<number>[]; text: string; before: number | null }[];
  mark: number | null;
  mark_words: string;
}
interface Axis { name: string; low: number; high: number; ticks: number[]; is_log: boolean }
interface Dots {
  kind: "plot";
  x: Axis;
  y: Axis;
  dots: { x: number; y: number; words: string; series: number; label: string }[];
  lines: { name: string; points: [number, number][]; series: number }[];
}
interface Strips { kind: "strips"; rows: [label: string, values: [number, string][]][]; name: string }
interface Heat { kind: "heat"; columns: string[]; rows: [label: string, shares: (number | null)[]][] }
interface Tiles { kind: "tiles"; panels: [name: string, rows: number[][]][]; most: number; unit: string }
export type Chart = { title: string } & (Bars | Dots | Strips | Heat | Tiles);

const ROW = 24;
const LETTER = 7.4; // about how wide one is: text is never measured, so that a picture is the same on every machine
const FAINT = "var(--faint)";
const small = { fontSize: 11, fill: FAINT, stroke: "var(--paper)", strokeWidth: 3 };
const halo = { ...small, fontSize: 12, fill: "var(--ink)" };
const rule = { stroke: "var(--rule)", strokeOpacity: 1 };
const axis = { tickSize: 0, labelArrow: "none", fontSize: 11, fill: FAINT } as const;
const colour = (series: number) => `var(--c${series % 6})`;
const letters = (word: string) => word.length + (word.match(/[mw]/gi)?.length ?? 0) / 2; // these are half as wide again
const longest = (words: string[]) => Math.max(0, ...words.map(letters)) * LETTER;
const percent = (share: number) => `${Math.round(100 * share)}%`;
const asFast = (share: number) => Math.round(100 * share) >= 100; // as its cell says

/** Rows with names: on the left, or above each row where they would take more than a share of the width. */
function named(names: string[], width: number, share = 0.3) {
  const left = longest(names) + 12;
  const lead = left > share * width ? 16 : 0;
  const y = { type: "band", domain: names.map((_, row) => row), padding: 0, axis: null } as const;
  const place = lead ? { dy: 9 - (ROW + lead) / 2, textAnchor: "start" } as const : { dx: -8, textAnchor: "end" } as const;
  const labels = Plot.text(names, { y: (_, row) => row, text: (name) => name, frameAnchor: "left", ...place, ...halo });
  return { left: lead ? 1 : left, lead, step: ROW + lead, y, labels };
}

function bars({ rows, mark, mark_words }: Bars, width: number): Plot.PlotOptions {
  const { left, lead, step, y, labels } = named(rows.map((row) => row.label), width);
  const right = Math.max(40, longest(rows.map((row) => row.text)) + 10);
  const ends = rows.map((row) => Math.max(row.parts.reduce((sum, [value]) => sum + value, 0), row.before ?? 0));
  const most = Math.max(...ends, mark ?? 0) || 1;
  const over = width - left - (width - left - right) * ((mark ?? 0) / most); // room right of the mark, for half of its words
  const parts = rows.flatMap((row, n) => row.parts.map(([value, series, words]) => ({ n, value, series, words })));
  const old = rows.flatMap((row, n) => row.before === null ? [] : [{ n, value: row.before, words: `${row.label} before: ${row.before}` }]);
  const top = mark === null ? 4 : 20;
  return {
    height: top + rows.length * step + 4, marginTop: top, marginBottom: 4, marginLeft: left, marginRight: right,
    x: { domain: [0, most], axis: null }, y,
    marks: [
      Plot.barX(parts, { x: "value", y: "n", fill: ({ series }) => colour(series), title: "words", insetTop: lead + (old.length ? 11 : 3), insetBottom: 3 }),
      Plot.barX(old, { x: "value", y: "n", fill: colour(0), fillOpacity: 0.45, title: "words", insetTop: lead + 2, insetBottom: ROW - 10 }),
      mark === null ? null : [
        Plot.ruleX([mark], { stroke: colour(1), strokeWidth: 2 }),
        Plot.text([mark_words], { x: mark, frameAnchor: "top", dx: Math.min(0, over - longest([mark_words]) / 2), dy: -10, ...small }),
      ],
      Plot.text(rows, { x: (_, n) => ends[n]!, y: (_, n) => n, text: "text", textAnchor: "start", dx: 6, dy: lead / 2, ...halo }),
      labels,
    ],
  };
}

interface Label { x: number; y: number; words: string }

/** Labels of places that are near one another become one, right of them all. */
function together(labels: Label[]): Label[] {
  const groups = labels.map((one) => [one]);
  const whole = (group: Label[]) => ({
    x: Math.max(...group.map((one) => one.x)),
    y: group.reduce((sum, one) => sum + one.y, 0) / group.length,
    words: inShort(group.map((one) => one.words).sort()),
  });
  const near = (a: Label, b: Label) => Math.abs(a.x - b.x) < 10 && Math.abs(a.y - b.y) < 12;
  for (let i = 1; i < groups.length; i++) {
    const j = groups.slice(0, i).findIndex((group) => near(whole(group), whole(groups[i]!)));
    if (j < 0) continue;
    groups[j]!.push(...groups.splice(i, 1)[0]!);
    i = 0; // what has grown may be near another
  }
  return groups.map(whole);
}

/** Names in their order, three and more that follow each other as "f05 to f11". */
function inShort(names: string[]): string {
  const runs: string[][] = [];
  for (const name of names) {
    const run = runs.at(-1);
    if (run && Number(name.slice(1)) === Number(run.at(-1)!.slice(1)) + 1) run.push(name);
    else runs.push([name]);
  }
  return runs.map((run) => (run.length > 2 ? `${run[0]} to ${run.at(-1)}` : run.join(", "))).join(", ");
}

function plot({ x, y, dots, lines }: Dots, width: number): Plot.PlotOptions {
  const [height, left, right, top, bottom] = [Math.round(260 + width / 6), 46, 20, 24, 44];
  const scale = (axis: Axis, range: number[]) =>
    ({ type: axis.is_log ? "log" : "linear", domain: [axis.low, axis.high], range, nice: !axis.is_log, label: null }) as const;
  const [across, up] = [scale(x, [left, width - right]), scale(y, [height - bottom, top])];
  const [toX, toY] = [Plot.scale({ x: across }), Plot.scale({ y: up })];
  const labels = together(dots.filter((dot) => dot.label).map((dot) => ({ x: toX.apply(dot.x), y: toY.apply(dot.y), words: dot.label })));
  const beside = labels.map((one) => {
    const end = one.x + 7 + longest([one.words]);
    return { ...one, isLeft: end > width || labels.some(({ x, y }) => x > one.x && x - 6 < end && Math.abs(y - one.y) < 12) };
  });
  const label = (isLeft: boolean) => Plot.text(beside.filter((one) => one.isLeft === isLeft), {
    x: (one) => toX.invert!(one.x), y: (one) => toY.invert!(one.y), text: "words", dx: isLeft ? -7 : 7, textAnchor: isLeft ? "end" : "start", ...small,
  });
  const ticks = (axis: Axis) => (axis.ticks.length ? axis.ticks : 6);
  let last = -Infinity; // names of ticks that would cover one another are left out
  const named = new Set(x.ticks.filter((tick) => {
    const [at, half] = [toX.apply(tick), longest([`${tick} `]) / 2];
    if (at - half < last) return false;
    last = at + half;
    return true;
  }));
  const points = lines.flatMap(({ name, points, series }) => points.map(([px, py]) => ({ px, py, name, series })));
  return {
    height, marginLeft: left, marginRight: right, marginTop: top, marginBottom: bottom, x: across, y: up,
    marks: [
      Plot.gridX({ ticks: ticks(x), ...rule }),
      Plot.gridY({ ticks: ticks(y), ...rule }),
      Plot.axisX({ ticks: ticks(x), text: (tick) => (named.has(tick) ? String(tick) : ""), label: x.name, labelAnchor: "center", ...axis }),
      Plot.axisY({ ticks: ticks(y), label: y.name, ...axis, ...(y.is_log && { text: String }) }),
      Plot.line(points, { x: "px", y: "py", z: "name", stroke: ({ series }) => colour(series), strokeWidth: 2, title: "name" }),
      Plot.dot(dots, { x: "x", y: "y", r: 4, fill: ({ series }) => colour(series), title: "words" }),
      label(false), label(true),
    ],
  };
}

function strips({ rows, name }: Strips, width: number): Plot.PlotOptions {
  const { left, lead, step, y, labels } = named(rows.map(([label]) => label), width);
  const values = rows.flatMap(([, values], n) => values.map(([value, words]) => ({ n, value, words })));
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  return {
    height: 8 + rows.length * step + 44, marginTop: 8, marginBottom: 44, marginLeft: Math.max(left, 10), marginRight: 24,
    x: { domain: [0, 1], label: null }, y,
    marks: [
      Plot.gridX({ ticks, ...rule }),
      Plot.axisX({ ticks, tickFormat: percent, label: name, labelAnchor: "center", ...axis }),
      Plot.tickX(values, { x: "value", y: "n", stroke: colour(0), strokeWidth: 2, strokeOpacity: 0.45, title: "words", insetTop: lead + 4, insetBottom: 4 }),
      labels,
    ],
  };
}

function heat({ columns, rows }: Heat, width: number): Plot.PlotOptions {
  const names = rows.map(([name]) => (width < 600 ? name.split("_")[0]! : name));
  const cells = rows.flatMap(([name, shares], n) => shares.flatMap((share, c) => share === null ? [] : [{
    n, c, share, words: `${name}, ${columns[c]}: ${(100 * share).toFixed(1)}%`,
  }]));
  const { left, y, labels } = named(names, width, 1);
  return {
    height: 22 + rows.length * ROW, marginTop: 20, marginBottom: 2, marginLeft: left, marginRight: 0, y,
    x: { type: "band", domain: columns.map((_, c) => c), padding: 0, axis: "top", tickSize: 0, tickFormat: (c) => columns[c]!, label: null },
    opacity: { type: "identity" },
    marks: [
      Plot.cell(cells, {
        x: "c", y: "n", fill: ({ share }) => colour(asFast(share) ? 2 : 0), fillOpacity: ({ share }) => (asFast(share) ? 0.6 : 0.08 + 0.72 * share ** 1.5),
        title: "words", inset: 1, rx: 3,
      }),
      Plot.text(cells, { x: "c", y: "n", text: ({ share }) => percent(share), fontSize: 11, fill: "var(--ink)", pointerEvents: "none" }),
      labels,
    ],
  };
}

function tiles({ panels, most, unit }: Tiles, width: number): Plot.PlotOptions {
  const cells = panels.flatMap(([panel, rows]) => rows.flatMap((row, y) => row.map((value, x) => ({
    panel, x, y, fill: `hsl(${Math.round((360 * value) / most)} 60% 55%)`, words: `row ${y}, column ${x}: ${unit} ${value}`,
  }))));
  const names = panels.map(([name]) => name);
  const [facet, count] = width < 600 ? ["fy", 1] as const : ["fx", panels.length] as const;
  const side = (width - 24 * (count - 1)) / count;
  return {
    height: (panels.length / count) * (side + 28), margin: 0, marginTop: 24,
    x: { axis: null, padding: 0 }, y: { axis: null, padding: 0 }, [facet]: { domain: names, axis: null, padding: count > 1 ? 24 / (side + 24) : 0.05 },
    marks: [
      Plot.cell(cells, { [facet]: "panel", x: "x", y: "y", fill: "fill", title: "words", insetRight: 0.5, insetBottom: 0.5 }),
      Plot.text(names, { [facet]: (name: string) => name, text: (name) => name, frameAnchor: "top-left", dy: -18, ...halo }),
    ],
  };
}

const kinds = { bars, plot, strips, heat, tiles };

/** The chart as SVG, `width` wide; `page`: the document that makes its elements, where there is no browser. */
export function draw(chart: Chart, width: number, page: Document = document): SVGSVGElement {
  const svg = Plot.plot({
    ...(kinds[chart.kind] as (chart: Chart, width: number) => Plot.PlotOptions)(chart, width), width, document: page, className: "plot", ariaLabel: chart.title,
    style: { color: "var(--ink)", fontSize: "12px" },
  }) as SVGSVGElement;
  svg.setAttribute("role", "img");
  const told = page.createElementNS("http://www.w3.org/2000/svg", "desc");
  told.textContent = [...svg.querySelectorAll("title")].slice(0, 60).map((title) => title.textContent).join("; ");
  svg.prepend(told);
  return svg;
}
