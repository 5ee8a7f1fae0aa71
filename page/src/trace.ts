// What report/traces.py packs, by name.

export type Warp = [warp: number, pattern: number, base: number];
export type Access = [array: number, writes: 0 | 1, bytes: number, warps: Warp[]];
export type Barrier = [address: number, phase: number, pending: number, expected: number, missing: number];
export interface Box {
  thread: number;
  to: number;
  box: number[];
  at: number[];
  bytes: number;
  row: number;
  swizzle: string | number;
  mbarrier: number | null;
  array: number;
}
export interface Told {
  left?: number;
  mbarrier?: number[];
  boxes?: Box[];
  loads?: boolean;
  operands?: ([number, number] | null)[][];
  hazards?: string[];
}
export type RawEvent = [op: number, warps: number, accesses: Access[], told: Told, barriers?: Barrier[]];
export interface Op {
  ptx: string;
  op: string;
  file?: string;
  code?: string;
}
export interface Trace {
  key: string;
  rung: string;
  teaches: string;
  config: string;
  dtype: string;
  problem: string;
  warps: number;
  swizzles: Record<string, [number, number, number]>;
  arrays: [name: string, rows: number, columns: number, item: number][];
  ops: Op[];
  patterns: (number | null)[][];
  events: RawEvent[];
  left_out: number;
  regions: [name: string, start: number, bytes: number][];
  fills: [region: number, first: number, last: number, tile: number][];
  reads: [region: number, first: number, last: number][];
  barriers: [address: number, name: string][];
}

/** Byte addresses of a warp's 32 lanes; null: the lane takes no part, or the warp. */
export function lanesOf(trace: Trace, access: Access, warp: number): (number | null)[] | null {
  const found = access[3].find(([number]) => number === warp);
  if (!found) return null;
  const [, pattern, base] = found;
  return trace.patterns[pattern]!.map((offset) => (offset === null ? null : base + offset));
}

/** The mbarriers as they stand after an event. */
export function barriersAt(trace: Trace, event: number): Barrier[] {
  for (let at = event; at >= 0; at--) {
    const told = trace.events[at]![4];
    if (told) return told;
  }
  return [];
}

/** What an instruction does, in two or three words. */
export function kindOf(op: string): string {
  const kinds: [string, string][] = [
    ["ld.global", "global load"], ["st.global", "global store"], ["ld.shared", "shared load"],
    ["st.shared", "shared store"], ["ldmatrix", "ldmatrix"], ["stmatrix", "stmatrix"],
    ["cp.async.commit", "commit"], ["cp.async.wait", "wait"], ["cp.async.c", "asynchronous copy"],
    ["cp.async.bulk.tensor", "TMA copy"], ["cp.async.bulk.commit", "commit of stores"],
    ["cp.async.bulk.wait", "wait for stores"], ["cp.reduce", "TMA reduction"], ["bar", "barrier"],
    ["mbarrier.init", "mbarrier: init"], ["mbarrier.try_wait", "mbarrier: wait"],
    ["mbarrier.test_wait", "mbarrier: wait"], ["mbarrier.arrive.expect_tx", "mbarrier: arrive, expect bytes"],
    ["mbarrier.arrive", "mbarrier: arrive"], ["mbarrier", "mbarrier"], ["mma", "product (mma)"],
    ["wgmma.mma", "product (wgmma)"], ["wgmma.commit", "commit of products"],
    ["wgmma.wait", "wait for products"], ["wgmma.fence", "fence of products"], ["wmma", "product (wmma)"],
  ];
  return kinds.find(([head]) => op.startsWith(head))?.[1] ?? op;
}
