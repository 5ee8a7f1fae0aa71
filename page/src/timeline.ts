// The pipeline: when each buffer of shared memory is being filled, is there, and is read.

import { drawing, s, text } from "./dom";
import { kindOf, type Trace } from "./trace";

const [WIDTH, LABEL, ROW] = [1000, 96, 20];

const MARKS: [row: string, test: RegExp][] = [
  ["products", /^(mma|wgmma\.mma|wmma\.mma)/],
  ["commits", /^(cp\.async\.commit|wgmma\.commit)/],
  ["waits", /^(cp\.async\.wait|wgmma\.wait|mbarrier\.try_wait|mbarrier\.test_wait)/],
  ["barriers", /^(bar|barrier|mbarrier\.arrive)/],
  ["stores", /^(st\.global|cp\.async\.bulk\.tensor.*\.global\.shared)/],
];

const across = (trace: Trace, event: number) => LABEL + ((WIDTH - LABEL - 8) * event) / trace.events.length;

/** Where a step is in the drawing, as a share of its width. */
export const placeOf = (trace: Trace, step: number) => across(trace, step + 0.5) / WIDTH;

/** A drawing in which a click goes to a step. */
export function pipeline(trace: Trace, step: number, go: (step: number) => void): SVGElement {
  const count = trace.events.length;
  const x = (event: number) => across(trace, event);
  const rows = trace.regions.length;
  const body: SVGElement[] = [];
  trace.regions.forEach(([name, start, bytes], region) => {
    const y = 4 + region * ROW;
    body.push(text(LABEL - 6, y + 13, name, { "text-anchor": "end", class: "small" }));
    body.push(s("rect", { x: LABEL, y: y + 2, width: WIDTH - LABEL - 8, height: ROW - 4, class: "lane-back" },
      s("title", {}, `${name}: bytes ${start} to ${start + bytes - 1} of shared memory`)));
  });
  const fills = [...trace.fills].sort((a, b) => a[1] - b[1]);
  fills.forEach(([region, first, last, tile]) => {
    const [name] = trace.regions[region]!;
    const next = fills.find((fill) => fill[0] === region && fill[1] > first);
    const landed = last < 0 ? count : last;
    const y = 4 + region * ROW + 2;
    const end = next ? next[1] : Math.max(landed + 1, ...trace.reads.filter((r) => r[0] === region).map((r) => r[2] + 1));
    body.push(s("rect", { x: x(first), y, width: Math.max(x(landed) - x(first), 1.5), height: ROW - 4, class: "flying" },
      s("title", {}, `${name}: tile ${tile} is under way, steps ${first + 1} to ${landed + 1}`)));
    body.push(s("rect", { x: x(landed), y, width: Math.max(x(Math.max(end, landed)) - x(landed), 1), height: ROW - 4, class: "there" },
      s("title", {}, `${name}: tile ${tile} is there from step ${landed + 1}`)));
    if (x(end) - x(first) > 12)
      body.push(text(x(first) + 3, y + 12, String(tile), { class: "tiny" }));
  });
  for (const [region, first, last] of trace.reads) {
    const y = 4 + region * ROW + ROW - 7;
    body.push(s("rect", { x: x(first), y, width: Math.max(x(last + 1) - x(first), 1.5), height: 4, class: "reading" },
      s("title", {}, `${trace.regions[region]![0]} is read, steps ${first + 1} to ${last + 1}`)));
  }
  let y = 8 + rows * ROW;
  for (const [name, test] of MARKS) {
    const steps = trace.events.flatMap(([op], number) => (test.test(trace.ops[op]!.op) ? [number] : []));
    if (!steps.length) continue;
    body.push(text(LABEL - 6, y + 10, name, { "text-anchor": "end", class: "small" }));
    for (const number of steps)
      body.push(s("rect", { x: x(number), y: y + 2, width: Math.max(x(1) - x(0) - 0.5, 1), height: 9, class: `mark-${name}` },
        s("title", {}, `step ${number + 1}: ${kindOf(trace.ops[trace.events[number]![0]]!.op)}`)));
    y += 14;
  }
  trace.events.forEach(([, , , told], number) => {
    if (told.hazards)
      body.push(s("path", { d: `M ${x(number + 0.5)} 2 l 7 12 h -14 z`, class: "hazard" },
        s("title", {}, `step ${number + 1}: ${told.hazards.join("; ")}`)));
  });
  body.push(s("line", { x1: x(step + 0.5), x2: x(step + 0.5), y1: 0, y2: y + 2, class: "now" }));
  const made = drawing(WIDTH, y + 4, "Pipeline", `Buffers of shared memory over ${count} steps; now at step ${step + 1}.`, ...body);
  made.classList.add("timeline");
  made.addEventListener("click", (event) => {
    const box = made.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    go(Math.min(Math.max(Math.floor(((at - LABEL) / (WIDTH - LABEL - 8)) * count), 0), count - 1));
  });
  return made;
}
