// From a thread's index to an element: two mappings, and what a warp's accesses cost under each.

import { apart, drawing, h, plural, s, text } from "./dom";
import { choices, explorer } from "./explorer";
import { sectors } from "./rules";
import type { State } from "./state";

const N = 4096;

export function threads(root: HTMLElement, state: State): void {
  explorer(
    root, state,
    [
      { name: "map", words: "Mapping", first: "down", options: [["down", "f01: a warp walks down a column"], ["along", "f02: a warp walks along a row"]] },
      { name: "side", words: "Block side", first: "8", options: choices([4, 8, 16, 32]) },
      { name: "thread", words: "Thread", low: 0, high: 1023, first: 5 },
    ],
    (values) => {
      const side = values.number("side");
      const count = side * side;
      const thread = Math.min(values.number("thread"), count - 1);
      const down = values.text("map") === "down";
      const place = (t: number) => (down ? { row: t % side, column: Math.floor(t / side) } : { row: Math.floor(t / side), column: t % side });
      const chosen = place(thread);
      const cell = Math.min(256 / side, 24);
      const grid = (x: number, y: number, name: string, at: (t: number) => { row: number; column: number }): SVGElement[] => [
        text(x, y - 6, name, { class: "label" }),
        ...Array.from({ length: count }, (_, t) => {
          const { row, column } = at(t);
          return s("rect", { x: x + column * cell, y: y + row * cell, width: cell, height: cell, fill: apart(Math.floor(t / 32)),
            class: t === thread ? "lane chosen" : Math.floor(t / 32) === Math.floor(thread / 32) ? "lane" : "lane dim" },
            s("title", {}, `thread ${t} (warp ${Math.floor(t / 32)}, lane ${t % 32}): C[${place(t).row}, ${place(t).column}]`));
        }),
        ...(cell >= 16 ? Array.from({ length: count }, (_, t) => {
          const { row, column } = at(t);
          return text(x + (column + 0.5) * cell, y + (row + 0.5) * cell + 4, String(t), { "text-anchor": "middle", class: Math.floor(t / 32) === Math.floor(thread / 32) ? "tiny" : "tiny soft" });
        }) : []),
      ];
      const wide = side * cell;
      const natural = (t: number) => ({ row: Math.floor(t / side), column: t % side });
      const a = 24 + 2 * wide + 24;
      const strip = Math.max(cell / 2, 6);
      const body = [
        ...grid(4, 24, "threads, in their order", natural),
        ...grid(28 + wide, 24, "the element of C of each", place),
        s("rect", { x: a + 6, y: 24 + chosen.row * cell, width: 120, height: strip, class: "s0" }, s("title", {}, "the row of A that the thread reads")),
        text(a + 6, 20 + chosen.row * cell, `A[${chosen.row}, 0 ... k]`, { class: "small" }),
        s("rect", { x: 28 + wide + chosen.column * cell, y: 24 + wide + 8, width: strip, height: 60, class: "s2" }, s("title", {}, "the column of B that the thread reads")),
        text(28 + wide + chosen.column * cell + strip + 4, 24 + wide + 40, `B[0 ... k, ${chosen.column}]`, { class: "small" }),
      ];
      const first = Math.floor(thread / 32) * 32;
      const warp = Array.from({ length: 32 }, (_, lane) => (first + lane < count ? first + lane : null));
      const lanes = (at: (p: { row: number; column: number }) => number) => warp.map((t) => (t === null ? null : 4 * at(place(t))));
      const cost: [string, number][] = [
        ["load of A[row, k]", sectors(lanes((p) => p.row * N), 4).length],
        ["load of B[k, column]", sectors(lanes((p) => p.column), 4).length],
        ["store of C[row, column]", sectors(lanes((p) => p.row * N + p.column), 4).length],
      ];
      const formula = down ? `row = ${thread} % ${side} = ${chosen.row}, column = ${thread} / ${side} = ${chosen.column}` : `row = ${thread} / ${side} = ${chosen.row}, column = ${thread} % ${side} = ${chosen.column}`;
      return [
        h("p", {}, h("b", {}, `Thread ${thread}: `), formula, `. Colours are warps; of a block of ${count} threads this is warp ${Math.floor(thread / 32)}.`),
        drawing(a + 140, 24 + wide + 76, "Threads and elements", formula, ...body),
        h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, `its warp, in matrices ${N} wide`), h("th", { scope: "col" }, "sectors"), h("th", { scope: "col" }, "bytes used of those moved"))),
          h("tbody", {}, ...cost.map(([name, found]) => {
            const unique = name.includes("A") ? new Set(lanes((p) => p.row)).size : name.includes("B") ? new Set(lanes((p) => p.column)).size : warp.filter((t) => t !== null).length;
            const used = (unique - (warp.includes(null) && !name.includes("C") ? 1 : 0)) * 4;
            return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, plural(found, "sector")), h("td", {}, `${used} of ${found * 32}`));
          }))),
      ];
    },
  );
}
