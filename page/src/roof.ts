// The roofline of a board, a tile of one's own on it, and the rungs that were measured there.

import { drawing, h, s, text } from "./dom";
import { choices, explorer } from "./explorer";
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
      const [width, height, left, bottom] = [root.clientWidth < 600 ? 360 : 720, 380, 60, 44];
      const [lowX, highX] = [0.1, 1000];
      const lowY = Math.min(0.05, ...rungs.map((rung) => rung.tflops / 2));
      const highY = peak * 3;
      const log = (value: number, low: number, high: number) => Math.log(value / low) / Math.log(high / low);
      const x = (value: number) => left + (width - left - 12) * log(value, lowX, highX);
      const y = (value: number) => 12 + (height - bottom - 12) * (1 - log(value, lowY, highY));
      const body: SVGElement[] = [];
      for (let e = -1; e < 3; e++) {
        const at = 10 ** e;
        body.push(s("line", { x1: x(at), x2: x(at), y1: 12, y2: height - bottom, class: "grid" }), text(x(at), height - bottom + 16, String(at), { "text-anchor": "middle", class: "small" }));
      }
      for (let e = Math.ceil(Math.log10(lowY)); 10 ** e <= highY; e++)
        body.push(s("line", { x1: left, x2: width - 12, y1: y(10 ** e), y2: y(10 ** e), class: "grid" }), text(left - 6, y(10 ** e) + 4, String(10 ** e), { "text-anchor": "end", class: "small" }));
      const start = Math.max(lowX, lowY / slope);
      body.push(s("polyline", { points: `${x(start)},${y(start * slope)} ${x(ridge)},${y(peak)} ${x(highX)},${y(peak)}`, class: "l1" }));
      body.push(text(width - 16, y(peak) - 6, `${peak.toFixed(1)} TFLOP/s`, { "text-anchor": "end", class: "small" }));
      body.push(text(x(ridge), y(peak) - 6, `ridge ${ridge.toFixed(1)} FLOP/B`, { "text-anchor": "end", class: "small" }));
      const labels: [number, number, string][] = [];
      for (const rung of rungs) {
        const [px, py] = [x(rung.intensity), y(rung.tflops)];
        body.push(s("circle", { cx: px, cy: py, r: 4, class: "s0" }, s("title", {}, `${rung.name}: ${rung.tflops.toPrecision(4)} TFLOP/s at ${rung.intensity.toPrecision(3)} FLOP/B`)));
        const near = labels.find(([lx, ly]) => Math.abs(lx - px) < 60 && Math.abs(ly - py) < 12);
        if (near) [near[0], near[2]] = [Math.max(near[0], px), `${near[2]}, ${rung.name.split("_")[0]}`];
        else labels.push([px, py, rung.name.split("_")[0]!]);
      }
      body.push(s("line", { x1: x(intensity), x2: x(intensity), y1: y(bound), y2: height - bottom, class: "now" }));
      for (const [px, py, words] of labels) body.push(text(px + 7, py + 4, words, { class: "halo small" }));
      body.push(s("circle", { cx: x(intensity), cy: y(bound), r: 6, class: "s2" }, s("title", {}, "your tile")));
      body.push(text((left + width) / 2, height - 8, "FLOP per byte that blocks ask of memory", { "text-anchor": "middle", class: "small" }));
      const by = intensity < ridge ? "memory" : "arithmetic";
      const measured = rungs.length ? "Dots are rungs as measured; one above the slope is served by L2." : `No rung of ${kind} has been measured on ${board.name}.`;
      return [
        h("p", {}, `A tile of ${m} x ${n} asks for one byte per ${intensity.toPrecision(3)} FLOP: at most ${bound.toPrecision(3)} TFLOP/s, bound by ${by}. ${board.name}: ${board.gb_s.toFixed(0)} GB/s. ${measured}`),
        drawing(width, height, "Roofline", `${board.name}, ${kind}: ridge at ${ridge.toFixed(1)} FLOP per byte.`, ...body),
      ];
    },
  );
}
