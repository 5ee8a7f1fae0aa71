// Registers: which lane holds which element of the fragments of ldmatrix, mma and wgmma, and of C.

import { boxes, drawing, hue, s, text } from "./dom";
import { lanesOf, type Trace } from "./trace";
import { placeOf } from "./global";
import { matrixHeld, mmaFragments, type Held } from "./rules";

const SIZES: Record<string, number> = { bf16: 2, f16: 2, tf32: 4, e4m3: 1, e5m2: 1, s8: 1, u8: 1, f64: 8 };

function grid(
  x: number, y: number, rows: number, columns: number, held: Held[][], lane: number, name: string, cell: number,
): SVGElement[] {
  const body: SVGElement[] = [text(x, y - 4, `${name}: ${rows} x ${columns}`, { class: "label" })];
  const owner = new Map<number, number>();
  held.forEach((places, l) => places.forEach((p) => owner.set(p.row * columns + p.column, l)));
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const l = owner.get(row * columns + column) ?? 0;
      const at = { x: x + column * cell, y: y + row * cell, width: cell, height: cell };
      body.push(s("rect", { ...at, fill: hue(l, 32), class: l === lane ? "lane chosen" : "lane dim" },
        s("title", {}, `${name}[${row}, ${column}]: lane ${l}`)));
      if (cell >= 13)
        body.push(text(at.x + cell / 2, at.y + cell / 2 + 3, String(l), { "text-anchor": "middle", class: l === lane ? "tiny" : "tiny soft" }));
    }
  return body;
}

function mma(op: string, lane: number): SVGElement | null {
  const shape = /\.m(\d+)n(\d+)k(\d+)/.exec(op);
  if (!shape) return null;
  const [m, n, k] = shape.slice(1).map(Number) as [number, number, number];
  const kinds = op.split(".").filter((part) => part in SIZES || part === "f32" || part === "s32");
  const size = SIZES[kinds[1] ?? "bf16"] ?? 2;
  if (m !== 16 || n !== 8) return null;
  const found = mmaFragments(m, n, k, size);
  const cell = k * 14 > 280 ? 10 : 14;
  const body = [
    ...grid(4, 22, m, k, found.a, lane, "A", cell),
    ...grid(24 + k * cell, 22, k, n, found.b, lane, "B", cell),
    ...grid(44 + (k + n) * cell, 22, m, n, found.c, lane, "C and D", cell),
  ];
  return drawing(48 + (k + 2 * n) * cell, 28 + Math.max(m, k) * cell, "Fragments of mma",
    `Each cell names the lane that holds it; lane ${lane} is outlined.`, ...body);
}

function ldmatrix(op: string, lane: number): SVGElement {
  const count = Number(/\.x(\d)/.exec(op)?.[1] ?? 4);
  const transposed = op.includes(".trans");
  const held = Array.from({ length: 32 }, (_, l) => matrixHeld(l, transposed));
  const body: SVGElement[] = [];
  for (let n = 0; n < count; n++) {
    const x = 4 + n * 128;
    body.push(...grid(x, 22, 8, 8, held, lane, `matrix ${n}`, 14));
    if (Math.floor(lane / 8) === n)
      body.push(s("rect", { x, y: 22 + (lane % 8) * 14, width: 112, height: 14, class: "gives" },
        s("title", {}, `lane ${lane} gives this row's address`)));
  }
  return drawing(4 + count * 128, 140, "Fragments of ldmatrix",
    `Lane ${lane} gives the address of row ${lane % 8} of matrix ${Math.floor(lane / 8)}, and receives the outlined elements of each.`, ...body);
}

function wgmma(op: string, lane: number, warp: number): SVGElement {
  const n = Number(/n(\d+)k/.exec(op)?.[1] ?? 64);
  const cell = 15;
  const columns = 16;
  const body: SVGElement[] = [text(52, 14, `D: 64 x ${n}, columns 0 to 15 of each warp's 16 rows`, { class: "label" })];
  for (let row = 0; row < 64; row++)
    for (let column = 0; column < columns; column++) {
      const owner = 4 * (row % 8) + Math.floor((column % 8) / 2);
      const of = Math.floor(row / 16);
      const mine = of === warp % 4;
      const kind = mine && owner === lane ? "lane chosen" : mine ? "lane dim" : "other";
      body.push(s("rect", { x: 52 + column * cell, y: 20 + row * 6, width: cell, height: 6, fill: mine ? hue(owner, 32) : undefined, class: kind },
        s("title", {}, `D[${row}, ${column}]: warp ${of} of the four, lane ${owner}`)));
    }
  for (let w = 0; w < 4; w++) body.push(text(46, 20 + w * 96 + 12, `warp ${w}`, { "text-anchor": "end", class: "small" }));
  return drawing(440, 410, "Accumulators of wgmma",
    `Four warps hold 16 rows each. The pattern repeats every 8 columns up to ${n}.`, ...body);
}

/** The fragments of an instruction; null where lanes hold what they asked for. */
export function fragments(op: string, lane: number, warp: number): { drawing: SVGElement; words: string } | null {
  if (op.startsWith("ldmatrix") || op.startsWith("stmatrix"))
    return {
      drawing: ldmatrix(op, lane),
      words: `Lane ${lane} gives the address of row ${lane % 8} of matrix ${Math.floor(lane / 8)} (striped), and holds the outlined elements, two of each matrix.`,
    };
  if (op.startsWith("mma")) {
    const made = mma(op, lane);
    return made && { drawing: made, words: `Cells name the lane that holds them. Lane ${lane} is outlined.` };
  }
  if (op.startsWith("wgmma.mma"))
    return {
      drawing: wgmma(op, lane, warp),
      words: `A warpgroup's four warps hold 16 rows of D each; A and B are read from shared memory. Lane ${lane} of warp ${warp % 4} is outlined.`,
    };
  return null;
}

/** Who writes which element of the result: the tile of a block, of a warp, of a thread. */
export function owners(trace: Trace, warp: number, lane: number): { drawing: SVGElement; words: string } | null {
  const out = trace.arrays.length - 1;
  const [name, rows, columns, item] = trace.arrays[out]!;
  const marks: { warp: number; lane: number; row: number; column: number; wide: number }[] = [];
  for (const [op, , accesses] of trace.events) {
    if (!trace.ops[op]!.op.startsWith("st.global")) continue;
    for (const access of accesses) {
      if (access[0] !== out) continue;
      for (const [number] of access[3])
        lanesOf(trace, access, number)!.forEach((at, l) => {
          if (at === null) return;
          const place = placeOf(trace, out, at);
          marks.push({ warp: number, lane: l, ...place, wide: access[2] / item });
        });
    }
  }
  if (!marks.length) return null;
  const high = Math.max(...marks.map((m) => m.row)) + 1;
  const cell = Math.min(480 / columns, 320 / high, 10);
  const body: SVGElement[] = [
    s("rect", { x: 2, y: 18, width: columns * cell, height: high * cell, class: "frame" }),
  ];
  const box = (m: (typeof marks)[number]): [number, number, number, number] => [2 + m.column * cell, 18 + m.row * cell, m.wide * cell, cell];
  body.push(boxes(marks.filter((m) => m.warp !== warp).map(box), { class: "other" }, "other warps"));
  for (let l = 0; l < 32; l++) {
    const held = marks.filter((m) => m.warp === warp && m.lane === l).map(box);
    if (held.length) body.push(boxes(held, { fill: hue(l, 32), class: "lane" }, `warp ${warp}, lane ${l}`));
  }
  const mine = marks.filter((m) => m.warp === warp && m.lane === lane);
  const each = mine.reduce((sum, m) => sum + m.wide, 0);
  body.push(boxes(mine.map(box), { class: "outline" }));
  body.push(text(2, 12, `${name}: the block's tile of ${rows} x ${columns}`, { class: "label" }));
  return {
    drawing: drawing(Math.max(columns * cell + 6, 240), high * cell + 22, `Who holds which element of ${name}`,
      `The chosen warp's elements in colours; lane ${lane} holds ${each}.`, ...body),
    words: `Lane ${lane} of warp ${warp} holds the outlined ${each === 1 ? "element" : `${each} elements`}; the warp's are coloured, one colour per lane.`,
  };
}
