// Shared memory: the words that a warp touches, in their banks, coloured by the wavefront that serves them.

import { drawing, hue, plural, s, text } from "./dom";
import { BANKS, fronts, wordsOf, type Fronts, type Kind, type Lanes } from "./rules";

const [CELL, LINE, LEFT, TOP] = [15, 14, 40, 18];
const MOST_ROWS = 34;

export interface Banks {
  drawing: SVGElement;
  found: Fronts;
  words: string;
}

export function bankGrid(lanes: Lanes, bytes: number, kind: Kind, lane: number, title: string): Banks {
  const found = fronts(lanes, bytes, kind);
  const owners = new Map<number, number[]>();
  lanes.forEach((at, l) => {
    if (at !== null) for (const word of wordsOf(at, bytes)) owners.set(word, [...(owners.get(word) ?? []), l]);
  });
  const rows = [...new Set([...owners.keys()].map((word) => Math.floor(word / BANKS)))].sort((a, b) => a - b);
  const shown = rows.slice(0, MOST_ROWS);
  const body: SVGElement[] = [];
  for (let bank = 0; bank < BANKS; bank += bank === 28 ? 3 : 4)
    body.push(text(LEFT + (bank + 0.5) * CELL, 12, String(bank), { "text-anchor": "middle", class: "small" }));
  shown.forEach((row, n) => {
    const y = TOP + n * LINE;
    body.push(text(LEFT - 4, y + 11, `${row * 128}`, { "text-anchor": "end", class: "small" }));
    body.push(s("rect", { x: LEFT, y, width: BANKS * CELL, height: LINE, class: "frame" }));
    if (n && row !== shown[n - 1]! + 1)
      body.push(s("line", { x1: LEFT - 34, x2: LEFT + BANKS * CELL, y1: y, y2: y, class: "break" }));
    for (let bank = 0; bank < BANKS; bank++) {
      const word = row * BANKS + bank;
      const here = owners.get(word);
      if (!here) continue;
      const front = found.front.get(word) ?? 0;
      const again = found.again.get(word);
      const served = again === undefined ? `wavefront ${front + 1}` : `wavefronts ${front + 1} and ${again + 1}`;
      const chosen = here.includes(lane);
      const cell = s(
        "rect",
        { x: LEFT + bank * CELL, y, width: CELL, height: LINE, fill: hue(front, Math.max(found.count, 6)), class: chosen ? "lane chosen" : "lane" },
        s("title", {}, `byte ${word * 4}, bank ${bank}, ${served}: lane ${here.join(", ")}`),
      );
      body.push(cell);
      if (again !== undefined)  // a stripe below: served once more
        body.push(s("rect", { x: LEFT + bank * CELL, y: y + LINE - 4, width: CELL, height: 4, fill: hue(again, Math.max(found.count, 6)), class: "over" }));
      const first = wordsOf(lanes[here[0]!]!, bytes)[0] === word || bank === 0;
      if (first)
        body.push(text(LEFT + (bank + 0.5) * CELL, y + 10.5, String(here[0]), { "text-anchor": "middle", class: "tiny" }));
    }
  });
  let bottom = TOP + shown.length * LINE;
  if (rows.length > shown.length) {
    body.push(text(LEFT, bottom + 13, `and ${rows.length - shown.length} more rows`, { class: "small" }));
    bottom += 16;
  }
  const most = Math.max(...found.load, 1);
  found.load.forEach((load, bank) => {
    const tall = Math.max((24 * load) / Math.max(most, 4), load ? 2 : 0);
    body.push(s("rect", { x: LEFT + bank * CELL + 2, y: bottom + 6, width: CELL - 4, height: tall, class: load > 1 ? "s1" : "s0" },
      s("title", {}, `bank ${bank}: ${plural(load, "word")} at once`)));
  });
  body.push(text(LEFT - 4, bottom + 16, "load", { "text-anchor": "end", class: "small" }));
  const extra = found.count > found.ideal ? `, ${found.count - found.ideal} more than the fewest possible` : ", the fewest possible";
  const words = `${plural(found.count, "wavefront")}${found.count ? extra : ""}.`;
  return {
    drawing: drawing(LEFT + BANKS * CELL + 2, bottom + 34, title, `Rows of 128 bytes across 32 banks. ${words}`, ...body),
    found, words,
  };
}
