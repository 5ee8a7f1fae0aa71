// Global memory: where a warp's lanes lie in a matrix, and the sectors of 32 bytes that they ask for.

import { boxes, drawing, hue, plural, s, text } from "./dom";
import { sectors } from "./rules";
import { lanesOf, type Access, type Trace } from "./trace";

const WIDTH = 520;

export interface Place {
  row: number;
  column: number;
}

export function placeOf(trace: Trace, array: number, offset: number): Place {
  const [, , columns, item] = trace.arrays[array]!;
  const element = Math.floor(offset / item);
  return { row: Math.floor(element / columns), column: element % columns };
}

/** The part of a matrix that an event touches, one mark per lane; other warps' lanes are grey. */
export function matrix(trace: Trace, access: Access, warp: number, lane: number): SVGElement {
  const [array, , bytes] = access;
  const [name, rows, columns, item] = trace.arrays[array]!;
  const wide = Math.max(Math.floor(bytes / item), 1);
  const marks: { warp: number; lane: number; place: Place }[] = [];
  for (const [number] of access[3]) {
    lanesOf(trace, access, number)!.forEach((at, l) => {
      if (at !== null) marks.push({ warp: number, lane: l, place: placeOf(trace, array, at) });
    });
  }
  const touched = marks.map((mark) => mark.place.row);
  let top = Math.floor(Math.min(...touched) / 8) * 8;
  let bottom = Math.min(Math.ceil((Math.max(...touched) + 1) / 8) * 8, rows);
  if (bottom - top < 16) {
    top = Math.max(Math.min(top, rows - 16), 0);
    bottom = Math.min(top + 16, rows);
  }
  const left = 34;
  const cell = Math.min((WIDTH - left - 8) / columns, 300 / (bottom - top), 16);
  const x = (column: number) => left + column * cell;
  const y = (row: number) => 20 + (row - top) * cell;
  const body: SVGElement[] = [
    s("rect", { x: left, y: 20, width: columns * cell, height: (bottom - top) * cell, class: "frame" }),
  ];
  const perSector = 32 / item;
  if (cell * perSector >= 6)
    for (let column = perSector; column < columns; column += perSector)
      body.push(s("line", { x1: x(column), x2: x(column), y1: y(top), y2: y(bottom), class: "grid" }));
  if (cell >= 6)
    for (let row = top + 1; row < bottom; row++)
      body.push(s("line", { x1: x(0), x2: x(columns), y1: y(row), y2: y(row), class: "grid" }));
  const mark = (m: (typeof marks)[number], kind: string, fill?: string) =>
    s(
      "rect",
      { x: x(m.place.column), y: y(m.place.row), width: wide * cell, height: cell, class: kind, fill },
      s("title", {}, `warp ${m.warp}, lane ${m.lane}: ${name}[${m.place.row}, ${m.place.column}${wide > 1 ? `..${m.place.column + wide - 1}` : ""}]`),
    );
  const others = marks.filter((m) => m.warp !== warp);
  body.push(boxes(others.map((m) => [x(m.place.column), y(m.place.row), wide * cell, cell]), { class: "other" }, "other warps"));
  for (const m of marks) if (m.warp === warp) body.push(mark(m, "lane", hue(m.lane, 32)));
  for (const m of marks) if (m.warp === warp && m.lane === lane) body.push(mark(m, "chosen"));
  body.push(text(left, 13, `${name}: ${rows} x ${columns}`, { class: "label" }));
  body.push(text(left - 4, y(top) + 9, String(top), { "text-anchor": "end", class: "small" }));
  body.push(text(left - 4, Math.max(y(bottom), y(top) + 20), String(bottom - 1), { "text-anchor": "end", class: "small" }));
  return drawing(
    WIDTH, y(bottom) + 8, `Matrix ${name}`,
    `Rows ${top} to ${bottom - 1} of ${name}; the chosen warp's lanes in colours, others grey.`, ...body,
  );
}

export interface Sectors {
  drawing: SVGElement;
  words: string;
  count: number;
}

/** Each sector that a warp asks for, as a box of its words: what is coloured is used. */
export function sectorBoxes(lanes: (number | null)[], bytes: number, lane: number): Sectors {
  const found = sectors(lanes, bytes);
  const owners = new Map<number, number>();
  lanes.forEach((at, l) => {
    if (at !== null) for (let byte = at; byte < at + bytes; byte += 2) owners.set(Math.floor(byte / 2) * 2, l);
  });
  const word = 8;
  const [box, gap] = [8 * word, 10];
  const across = Math.floor((WIDTH + gap) / (box + gap));
  const body: SVGElement[] = [];
  found.forEach((sector, n) => {
    const x = (n % across) * (box + gap);
    const y = Math.floor(n / across) * 22 + 2;
    for (let half = 0; half < 16; half++) {
      const owner = owners.get(sector * 32 + half * 2);
      if (owner === undefined) continue;
      const place = { x: x + (half * word) / 2, y, width: word / 2, height: 14 };
      const kind = owner === lane ? "taken chosen-fill" : "taken";
      body.push(s("rect", { ...place, fill: hue(owner, 32), class: kind, "stroke-width": 0 }, s("title", {}, `lane ${owner}`)));
    }
    body.push(s("rect", { x, y, width: box, height: 14, class: "frame" }));
  });
  const asked = new Set(owners.keys()).size * 2;
  const moved = found.length * 32;
  const used = moved ? asked / moved : 0;
  const words = `${plural(found.length, "sector")} of 32 bytes: ${moved} bytes move, ${asked} are used (${Math.round(100 * used)}%).`;
  const height = Math.max(Math.ceil(found.length / across), 1) * 22;
  return { drawing: drawing(WIDTH, height, "Sectors", words, ...body), words, count: found.length };
}
