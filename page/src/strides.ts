// An xor swizzle as signed strides: what a08 does with its addresses.

import { drawing, h, hue, s, text } from "./dom";
import { choices, explorer } from "./explorer";
import type { State } from "./state";

export function strides(root: HTMLElement, state: State): void {
  explorer(
    root, state,
    [
      { name: "size", words: "Units in a row", first: "8", options: choices([2, 4, 8]) },
      { name: "thread", words: "Thread", low: 0, high: 7, first: 3 },
      { name: "step", words: "Step", low: 0, high: 7, first: 5 },
    ],
    (values) => {
      const size = values.number("size");
      const thread = values.number("thread") % size;
      const step = values.number("step") % size;
      const bits = Math.log2(size);
      const signed = (t: number) => Array.from({ length: bits }, (_, n) => (t & (1 << n) ? -(1 << n) : 1 << n));
      const cell = 34;
      const body: SVGElement[] = [];
      for (let row = 0; row < size; row++) {
        body.push(text(52, 4 + (row + 0.62) * cell, `thread ${row}`, { "text-anchor": "end", class: "small" }));
        for (let column = 0; column < size; column++) {
          const when = row ^ column;
          const chosen = row === thread && when === step;
          body.push(s("rect", { x: 60 + column * cell, y: 4 + row * cell, width: cell, height: cell, fill: hue(when, size), class: chosen ? "lane chosen" : row === thread ? "lane" : "lane dim" }));
          body.push(text(60 + (column + 0.5) * cell, 4 + (row + 0.62) * cell, String(when), { "text-anchor": "middle", class: "soft" }));
        }
      }
      const terms = signed(thread).map((value, n) => ({ value, taken: (step >> n) & 1 })).reverse();
      const sum = terms.filter((term) => term.taken).map((term) => (term.value < 0 ? `- ${-term.value}` : `+ ${term.value}`)).join(" ");
      return [
        h("p", {}, h("b", {}, `Thread ${thread}, step ${step}: `), `${thread} xor ${step} = ${thread ^ step}, and ${thread} ${sum || "+ 0"} = ${thread ^ step}. `,
          "Each bit of the step adds its value where the thread's bit is clear, and takes it away where it is set. The address is then one register and constants; no xor per access."),
        h("p", {}, "Columns are units of 16 bytes; a number is the step at which the thread comes there."),
        drawing(64 + size * cell, 8 + size * cell, "A swizzle as strides", `Columns thread xor step of ${size} threads.`, ...body),
        h("table", {}, h("thead", {}, h("tr", {}, ...["thread", "starts at", ...Array.from({ length: bits }, (_, n) => `bit ${bits - 1 - n} of the step`)].map((name) => h("th", { scope: "col" }, name)))),
          h("tbody", {}, ...Array.from({ length: size }, (_, t) => h("tr", { class: t === thread ? "changed" : "" }, h("th", { scope: "row" }, String(t)), h("td", {}, String(t)),
            ...signed(t).reverse().map((value) => h("td", {}, value < 0 ? `− ${-value}` : `+ ${value}`)))))),
      ];
    },
  );
}
