// Tiles: a block's part of C, a warp's, a thread's, and what the sizes cost.

import { boxes, drawing, h, hue, plural, s, text } from "./dom";
import { choices, explorer } from "./explorer";
import type { State } from "./state";

export function tiles(root: HTMLElement, state: State): void {
  explorer(
    root, state,
    [
      { name: "m", words: "Tile m", first: "64", options: choices([32, 64, 128]) },
      { name: "n", words: "Tile n", first: "64", options: choices([32, 64, 128]) },
      { name: "k", words: "Tile k", first: "8", options: choices([8, 16, 32]) },
      { name: "tm", words: "Thread m", first: "8", options: choices([1, 2, 4, 8]) },
      { name: "tn", words: "Thread n", first: "1", options: choices([1, 2, 4, 8]) },
      { name: "kind", words: "Threads of a warp", first: "row", options: [["row", "one after another"], ["warp", "warp tiles, 8 x 4 threads"]] },
      { name: "thread", words: "Thread", low: 0, high: 1023, first: 9 },
      { name: "step", words: "Step along k", low: 0, high: 31, first: 2 },
    ],
    (values) => {
      const [m, n, k, tm, tn] = ["m", "n", "k", "tm", "tn"].map((name) => values.number(name)) as [number, number, number, number, number];
      const [down, across] = [m / tm, n / tn];
      const count = down * across;
      const thread = Math.min(values.number("thread"), count - 1);
      const step = Math.min(values.number("step"), k - 1);
      const warps = values.text("kind") === "warp" && down % 8 === 0 && across % 4 === 0;
      const perRow = warps ? across / 4 : 1;
      const place = (t: number) => {
        if (!warps) return { row: Math.floor(t / across), column: t % across };
        const [warp, lane] = [Math.floor(t / 32), t % 32];
        return { row: Math.floor(warp / perRow) * 8 + Math.floor(lane / 4), column: (warp % perRow) * 4 + (lane % 4) };
      };
      const cell = 320 / Math.max(m, n);
      const [left, top] = [24 + k * cell + 16, 24 + k * cell + 16];
      const mine = Math.floor(thread / 32);
      const body: SVGElement[] = [
        text(left, top - k * cell - 12, `B: ${k} x ${n} in shared memory`, { class: "label" }),
        s("rect", { x: left, y: top - k * cell - 6, width: n * cell, height: k * cell, class: "frame" }),
        s("rect", { x: left - k * cell - 6, y: top, width: k * cell, height: m * cell, class: "frame" }),
        text(left - k * cell - 6, top + m * cell + 14, `A: ${m} x ${k}`, { class: "label" }),
        s("rect", { x: left, y: top, width: n * cell, height: m * cell, class: "frame" }),
      ];
      const others: [number, number, number, number][] = [];
      for (let t = 0; t < count; t++) {
        const { row, column } = place(t);
        const box = { x: left + column * tn * cell, y: top + row * tm * cell, width: tn * cell, height: tm * cell };
        if (Math.floor(t / 32) !== mine) others.push([box.x, box.y, box.width, box.height]);
        else body.push(s("rect", { ...box, fill: hue(t % 32, 32), class: t === thread ? "lane chosen" : "lane" },
          s("title", {}, `thread ${t}: warp ${mine}, lane ${t % 32}`)));
      }
      body.push(boxes(others, { class: "other rim" }, "other warps"));
      const own = place(thread);
      body.push(
        s("rect", { x: left - k * cell - 6 + step * cell, y: top + own.row * tm * cell, width: cell, height: tm * cell, class: "s1" },
          s("title", {}, "what the thread reads of A at this step")),
        s("rect", { x: left + own.column * tn * cell, y: top - k * cell - 6 + step * cell, width: tn * cell, height: cell, class: "s1" },
          s("title", {}, "what the thread reads of B at this step")),
      );
      const reads = tm + tn;
      const intensity = (2 * m * n * k) / (4 * k * (m + n));
      const rows: [string, string][] = [
        ["threads per block", `${count}${count > 1024 ? ": more than the 1024 that a block may have" : ""}`],
        ["sums in registers, per thread", String(tm * tn)],
        ["shared loads per product", `${reads} for ${plural(tm * tn, "product")}: ${(reads / (tm * tn)).toFixed(3)}`],
        ["shared memory of one stage, fp32, unpadded", `${4 * k * (m + n)} bytes`],
        ["intensity: FLOP per byte of global memory", intensity.toFixed(1)],
        ["barriers per product of 4096 along k", String((2 * 4096) / k)],
      ];
      const idea = tm === 1 && tn === 1 ? "One element per thread: every product needs two loads from shared memory (f03)."
        : tn === 1 || tm === 1 ? "A column of elements per thread: the element that they share is read once (f04)."
        : warps ? "Warp tiles: a warp's 32 threads sit together, 8 down and 4 across, so their loads are few and wide (f07, f08)."
        : "An outer product per thread: tm + tn loads feed tm x tn products (f05).";
      return [
        h("p", {}, idea, ` Thread ${thread} of warp ${mine} is outlined; its warp is coloured, one colour per lane.`),
        h("div", { class: "panels" },
          drawing(left + n * cell + 8, top + m * cell + 20, "Tiles of a block, a warp and a thread", idea, ...body),
          h("table", {}, h("tbody", {}, ...rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value)))))),
      ];
    },
  );
}
