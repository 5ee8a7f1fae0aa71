// The roofline of a board, a tile of one's own on it, and the rungs that were measured there.

import type { Chart } from "./charts";
import { h } from "./dom";
import { choices, explorer } from "./explorer";
import { figure } from "./figures";
import type { State } from "./state";

export interface Roofs {
  boards: { name: string; gb_s: number; peaks: Record<string, number> }[];
  rungs: { name: string; kind: string; board: string; intensity: number; tflops: number }[];
}

export function roof(root: HTMLElement, state: State, data: Roofs): void {
  const kinds = Object.keys(data.boards[0]!.peaks);
  explorer(
    root, state,
    [
      { name: "board", words: "GPU", first: "H200", options: data.boards.map((board) => [board.name, board.name]) },
      { name: "kind", words: "Type", first: "f32", options: choices(kinds) },
      { name: "m", words: "Tile m", first: "64", options: choices([1, 8, 16, 32, 64, 128, 256]) },
      { name: "n", words: "Tile n", first: "64", options: choices([1, 8, 16, 32, 64, 128, 256]) },
    ],
    (values) => {
      const board = data.boards.find((one) => one.name === values.text("board")) ?? data.boards[0]!;
      const kind = values.text("kind");
      const peak = board.peaks[kind]!;
      const [m, n] = [values.number("m"), values.number("n")];
      const item = kind === "f32" ? 4 : 2;
      const intensity = (2 * m * n) / (item * (m + n));
      const slope = board.gb_s / 1000;
      const ridge = peak / slope;
      const bound = Math.min(peak, intensity * slope);
      const rungs = data.rungs.filter((rung) => rung.kind === kind && rung.board === board.name);
      const [lowX, highX] = [0.1, 1000];
      const lowY = 10 ** Math.floor(Math.log10(Math.min(0.1, bound, ...rungs.map((rung) => rung.tflops))));
      const start = Math.max(lowX, lowY / slope);
      const axis = (name: string, low: number, high: number) => ({
        name, low, high, is_log: true, ticks: Array.from({ length: Math.round(Math.log10(high / low)) + 1 }, (_, n) => Number((low * 10 ** n).toPrecision(3))),
      });
      const chart: Chart = {
        kind: "plot", title: `Roofline of ${board.name}, ${kind}`,
        x: axis("FLOP per byte that blocks ask of memory", lowX, highX),
        y: axis("TFLOP/s", lowY, 10 ** Math.ceil(Math.log10(peak))),
        lines: [
          { name: `${peak.toFixed(1)} TFLOP/s`, points: [[start, start * slope], [ridge, peak], [highX, peak]], series: 1 },
          { name: "your tile's intensity", points: [[intensity, lowY], [intensity, bound]], series: 2 },
        ],
        dots: [
          { x: ridge, y: peak, words: `${peak.toFixed(1)} TFLOP/s from ${ridge.toFixed(1)} FLOP/B on`, series: 1, label: "" },
          ...rungs.map(({ name, intensity, tflops }) => ({
            x: intensity, y: tflops, words: `${name}: ${tflops.toPrecision(4)} TFLOP/s at ${intensity.toPrecision(3)} FLOP/B`, series: 0, label: name.split("_")[0]!,
          })),
          { x: intensity, y: bound, words: `your tile: at most ${bound.toPrecision(3)} TFLOP/s`, series: 2, label: "" },
        ],
      };
      const by = intensity < ridge ? "memory" : "arithmetic";
      const measured = rungs.length ? "Dots are rungs as measured; one above the slope is served by L2." : `No rung of ${kind} has been measured on ${board.name}.`;
      return [
        h("p", {}, `A tile of ${m} x ${n} asks for one byte per ${intensity.toPrecision(3)} FLOP: at most ${bound.toPrecision(3)} TFLOP/s, bound by ${by}. ${board.name}: ${board.gb_s.toFixed(0)} GB/s and ${peak.toFixed(1)} TFLOP/s meet at ${ridge.toFixed(1)} FLOP/B, the ridge. ${measured}`),
        figure(chart, root.clientWidth),
      ];
    },
  );
}
