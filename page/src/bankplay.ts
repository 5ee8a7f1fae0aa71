// Banks: a tile in shared memory, an access, a padding and a swizzle of one's own.

import { boxes, drawing, h, hue, plural, text } from "./dom";
import { choices, explorer } from "./explorer";
import { fronts, swizzle, type Kind } from "./rules";
import { bankGrid } from "./shared";
import type { State } from "./state";

export function bankplay(root: HTMLElement, state: State): void {
  explorer(
    root, state,
    [
      { name: "item", words: "Bytes per element", first: "4", options: choices([2, 4]) },
      { name: "columns", words: "Columns", first: "32", options: choices([16, 32, 64, 128]) },
      { name: "pad", words: "Padding, elements", low: 0, high: 8, first: 0 },
      { name: "access", words: "A warp reads", first: "column", options: [["column", "a column, one element per lane"], ["row", "a row, one element per lane"], ["vectors", "16 bytes per lane, 8 lanes a row"], ["matrix", "ldmatrix, 32 rows of 16 bytes"]] },
      { name: "at", words: "First column", low: 0, high: 127, first: 0 },
      { name: "bits", words: "Swizzle: bits", low: 0, high: 5, first: 5 },
      { name: "base", words: "Swizzle: base", low: 0, high: 4, first: 0 },
      { name: "shift", words: "Swizzle: shift", low: 0, high: 6, first: 5 },
    ],
    (values) => {
      const [item, columns, pad] = [values.number("item"), values.number("columns"), values.number("pad")];
      const bits = values.number("bits");
      const turn: [number, number, number] = [bits, values.number("base"), Math.max(values.number("shift"), bits)];
      const access = values.text("access");
      const pitch = columns + pad;
      const unit = access === "vectors" || access === "matrix" ? 16 / item : 1;
      const at = Math.min(Math.floor(values.number("at") / unit) * unit, columns - unit);
      const bytes = unit * item;
      const element = (lane: number): number => {
        if (access === "column" || access === "matrix") return lane * pitch + at;
        if (access === "row") return Math.floor(lane / columns) * pitch + (lane % columns);
        const per = Math.min(8, columns / unit);
        return Math.floor(lane / per) * pitch + (lane % per) * unit;
      };
      const kind: Kind = access === "matrix" ? "matrix" : "load";
      const broken = (pitch * item) % bytes !== 0;
      const splits = unit > 1 && turn[0] > 0 && 1 << turn[1] < unit;
      if (broken) return [h("p", { class: "alarm" }, `With ${plural(pad, "element")} of padding a row is ${pitch * item} bytes: accesses of ${bytes} bytes are not aligned. Choose another padding.`)];
      const lanes = Array.from({ length: 32 }, (_, lane) => element(lane) * item);
      const before = bankGrid(lanes, bytes, kind, 0, "Banks as the tile lies");
      const made: (Node | string)[] = [];
      const sides: [string, (e: number) => number][] = [["as it lies", (e) => e]];
      if (bits && !splits) sides.push([`Swizzle<${turn.join(", ")}>`, (e) => swizzle(e, turn)]);
      const rows = 32;
      const cell = Math.min(330 / columns, 10);
      const tile = (name: string, move: (e: number) => number) => {
        const body: SVGElement[] = [text(0, 12, name, { class: "label" })];
        const touched = new Set(Array.from({ length: 32 }, (_, lane) => element(lane)).flatMap((e) => Array.from({ length: unit }, (_, n) => e + n)));
        const places: [number, number, number, number][][] = Array.from({ length: 64 }, () => []);
        for (let row = 0; row < rows; row++)
          for (let column = 0; column < columns; column++) {
            const bank = Math.floor((move(row * pitch + column) * item) / 4) % 32;
            const read = touched.has(row * pitch + column);
            places[bank + (read ? 32 : 0)]!.push([column * cell, 18 + row * 9, cell, 9]);
          }
        places.forEach((held, n) => {
          if (held.length) body.push(boxes(held, { fill: hue(n % 32, 32), class: n < 32 ? "lane dim" : "lane" }, `bank ${n % 32}`));
        });
        body.push(boxes(places.slice(32).flat(), { class: "outline" }));
        return drawing(columns * cell + 2, 20 + rows * 9, `Bank of each element, ${name}`, "Each colour is a bank; what the warp reads is outlined.", ...body);
      };
      const words = [`As it lies: ${before.words}`];
      const pictures = [h("div", {}, tile(sides[0]![0], sides[0]![1]), before.drawing)];
      if (sides[1]) {
        const moved = Array.from({ length: 32 }, (_, lane) => swizzle(element(lane), turn) * item);
        const after = bankGrid(moved, bytes, kind, 0, "Banks after the swizzle");
        words.push(`Swizzled: ${after.words}`);
        pictures.push(h("div", {}, tile(sides[1][0], sides[1][1]), after.drawing));
      }
      if (splits) words.push(`A base of ${turn[1]} would take the ${unit} elements of a lane apart: choose at least ${Math.log2(unit)}.`);
      const dense = fronts(lanes, bytes, kind);
      made.push(h("p", {}, words.join(" "), ` The busiest bank holds ${plural(Math.max(...dense.load), "word")} of one request.`,
        " Above, the tile in its banks' colours; below, a column is a bank, a row 128 bytes, a number a lane, and a colour a wavefront."));
      made.push(h("div", { class: "panels" }, ...pictures));
      return made;
    },
  );
}
