// The rules of memory: sectors as in emu/coalesce.py, banks as in emu/banks.py. A test holds them to those files.

export const BANKS = 32;
export type Lanes = (number | null)[];
export type Kind = "load" | "store" | "matrix" | "copy";

/** Distinct sectors of 32 bytes, in order. */
export function sectors(lanes: Lanes, bytes: number): number[] {
  const found = new Set<number>();
  for (const at of lanes) {
    if (at === null) continue;
    for (let s = Math.floor(at / 32); s <= Math.floor((at + bytes - 1) / 32); s++) found.add(s);
  }
  return [...found].sort((a, b) => a - b);
}

/** The words of 4 bytes that a lane touches. */
export function wordsOf(at: number, bytes: number): number[] {
  const first = Math.floor(at / 4);
  return Array.from({ length: Math.max(bytes / 4, 1) }, (_, n) => first + n);
}

function paired(lanes: Lanes): boolean {
  return [1, 2].some((d) =>
    lanes.every((at, lane) => {
      const other = lanes[lane ^ d];
      return at === null || other === null || other === undefined || at === other;
    }),
  );
}

/** The groups of lanes that are served apart. */
function groups(lanes: Lanes, bytes: number, kind: Kind): number[][] {
  const range = (start: number, count: number) => Array.from({ length: count }, (_, n) => start + n);
  if (bytes <= 4) return [range(0, 32)];
  const whole = bytes === 8 ? 32 : 16;
  const found: number[][] = [];
  for (let start = 0; start < 32; start += whole) {
    const merges = kind === "load" && paired(lanes.slice(start, start + whole));
    if (merges) found.push(range(start, whole));
    else found.push(range(start, whole / 2), range(start + whole / 2, whole / 2));
  }
  return found;
}

export interface Fronts {
  /** Wavefronts of the request. */
  count: number;
  /** The fewest that could carry its distinct bytes. */
  ideal: number;
  /** Word -> the wavefront that serves it, counted from 0. */
  front: Map<number, number>;
  /** Word -> the last other wavefront that serves it, where groups of lanes ask for the same word. */
  again: Map<number, number>;
  /** Distinct words of each bank, most of any group. */
  load: number[];
}

/** How a warp's request to shared memory is served. */
export function fronts(lanes: Lanes, bytes: number, kind: Kind): Fronts {
  const front = new Map<number, number>();
  const again = new Map<number, number>();
  const load = new Array<number>(BANKS).fill(0);
  const every = new Set<number>();
  lanes.forEach((at) => at !== null && wordsOf(at, bytes).forEach((word) => every.add(word)));
  const ideal = Math.ceil(every.size / BANKS);
  let count = 0;
  if (kind === "copy") {
    if (bytes === 16) {
      const active = lanes.filter((at) => at !== null).length;
      count = Math.ceil((active * bytes) / 128);
      [...every].sort((a, b) => a - b).forEach((word, n) => front.set(word, Math.floor(n / BANKS)));
    } else {
      for (const at of lanes)
        if (at !== null) for (const word of wordsOf(at, bytes)) front.set(word, load[word % BANKS]!++);
      count = Math.max(...load);
    }
    return { count, ideal, front, again, load };
  }
  for (const group of groups(lanes, bytes, kind)) {
    const words = new Set<number>();
    for (const lane of group) {
      const at = lanes[lane] ?? null;
      if (at !== null) wordsOf(at, bytes).forEach((word) => words.add(word));
    }
    const seen = new Array<number>(BANKS).fill(0);
    for (const word of [...words].sort((a, b) => a - b)) {
      const pass = seen[word % BANKS]!++;
      (front.has(word) ? again : front).set(word, count + pass);
    }
    seen.forEach((n, bank) => (load[bank] = Math.max(load[bank]!, n)));
    count += Math.max(...seen);
  }
  return { count, ideal, front, again, load };
}

/** Swizzle<bits, base, shift> of an offset: its own inverse. */
export function swizzle(offset: number, [bits, base, shift]: [number, number, number]): number {
  return offset ^ ((offset >> shift) & (((1 << bits) - 1) << base));
}

export interface Held {
  row: number;
  column: number;
}

/** What a lane holds of ldmatrix's matrix: two neighbours of a row (of a column if transposed). */
export function matrixHeld(lane: number, transposed: boolean): Held[] {
  const row = lane >> 2;
  const column = 2 * (lane & 3);
  return [0, 1].map((e) => (transposed ? { row: column + e, column: row } : { row, column: column + e }));
}

export interface Fragments {
  m: number;
  n: number;
  k: number;
  a: Held[][];
  b: Held[][];
  c: Held[][];
}

/** The elements that each lane holds of A, B and C of mma.m..n..k, for elements of `size` bytes (PTX ISA). */
export function mmaFragments(m: number, n: number, k: number, size: number): Fragments {
  const e = Math.max(4 / size, 1);
  const lanes = Array.from({ length: 32 }, (_, lane) => lane);
  const a = lanes.map((lane) => {
    const held: Held[] = [];
    for (let q = 0; q < k / (4 * e); q++)
      for (let h = 0; h < m / 8; h++)
        for (let i = 0; i < e; i++) held.push({ row: 8 * h + (lane >> 2), column: 4 * e * q + e * (lane & 3) + i });
    return held;
  });
  const b = lanes.map((lane) => {
    const held: Held[] = [];
    for (let q = 0; q < k / (4 * e); q++)
      for (let i = 0; i < e; i++) held.push({ row: 4 * e * q + e * (lane & 3) + i, column: lane >> 2 });
    return held;
  });
  const c = lanes.map((lane) => {
    const held: Held[] = [];
    for (let h = 0; h < m / 8; h++)
      for (let p = 0; p < 2; p++) held.push({ row: 8 * h + (lane >> 2), column: 2 * (lane & 3) + p });
    return held;
  });
  return { m, n, k, a, b, c };
}
