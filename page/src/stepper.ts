// One block of a kernel, instruction by instruction, as the emulator ran it.

import { checkbox, drawing, h, labelled, plural, renew, s, select, slider, text } from "./dom";
import { matrix, sectorBoxes } from "./global";
import { fragments, owners } from "./registers";
import { swizzle, type Kind } from "./rules";
import { bankGrid } from "./shared";
import type { State } from "./state";
import { pipeline, placeOf } from "./timeline";
import { barriersAt, kindOf, lanesOf, type Access, type Trace } from "./trace";

const SKIPS: [value: string, words: string, test: RegExp][] = [
  ["any", "any step", /./],
  ["global", "global memory", /^(ld\.global|st\.global|cp\.async\.c[ag]|cp\.async\.bulk\.tensor)/],
  ["shared", "shared memory", /^(ld\.shared|st\.shared|ldmatrix|stmatrix|cp\.async\.c[ag])/],
  ["product", "a product", /^(mma|wgmma\.mma|wmma\.mma)/],
  ["sync", "a wait or barrier", /^(bar|barrier|mbarrier|cp\.async\.(wait|commit)|wgmma\.(wait|commit))/],
];

function panel(title: string, ...children: (Node | string | null)[]): HTMLElement {
  return h("figure", { class: "panel" }, h("figcaption", {}, title), ...children);
}

/** What is wider than a phone: its place scrolls, by the keyboard too. */
function scrolled(wide: Node): HTMLElement {
  return h("div", { class: "scroll", tabindex: 0 }, wide);
}

/** A rung's id in words; a file's name as it is. */
function nameOf(rung: string): string {
  return rung.includes(".") ? rung : rung.replace(/_/g, " ");
}

function sharedKind(op: string): Kind {
  if (op.startsWith("ldmatrix") || op.startsWith("stmatrix")) return "matrix";
  if (op.startsWith("cp.async")) return "copy";
  return op.startsWith("st") ? "store" : "load";
}

export class Stepper {
  private traces: Trace[];
  private timer: number | undefined;
  private body = h("div", { class: "stage" });
  private top = h("div", { class: "controls" });
  private bar = h("div", { class: "controls steps" });
  /** What the step does, for screen readers: they read what changes in a place that stays. */
  private live = h("p", { class: "aloud", "aria-live": "polite" });

  constructor(traces: Trace[], private state: State, root: HTMLElement) {
    this.traces = traces;
    root.append(this.top, this.bar, this.live, this.body);
    root.addEventListener("keydown", (event) => this.key(event));
    state.changed(() => this.draw());
    this.draw();
  }

  private get trace(): Trace {
    const key = this.state.get("k", this.traces[0]!.key);
    return this.traces.find((trace) => trace.key === key) ?? this.traces[0]!;
  }

  private get step(): number {
    return this.state.number("step", 0, 0, this.trace.events.length - 1);
  }

  private go(step: number): void {
    this.state.set({ step: Math.min(Math.max(step, 0), this.trace.events.length - 1) });
    this.draw();
  }

  /** The kinds of steps that the kernel has. */
  private get skips(): typeof SKIPS {
    return SKIPS.filter(([, , test]) => this.trace.events.some(([op]) => test.test(this.trace.ops[op]!.op)));
  }

  /** The kind of steps that is chosen: any, where the kernel has none of that kind. */
  private get kind(): (typeof SKIPS)[number] {
    return this.skips.find(([value]) => value === this.state.get("skip", "any")) ?? SKIPS[0]!;
  }

  /** The next step of the chosen kind, or the one before; undefined where there is none. */
  private beside(by: 1 | -1): number | undefined {
    const { events, ops } = this.trace;
    for (let at = this.step + by; at >= 0 && at < events.length; at += by)
      if (this.kind[2].test(ops[events[at]![0]]!.op)) return at;
    return undefined;
  }

  private skip(by: 1 | -1): void {
    const at = this.beside(by);
    if (at === undefined) this.stop();
    else this.go(at);
  }

  /** A button that steps; it stays where it is, and reachable, when there is nowhere to step to. */
  private stepping(name: string, spoken: string, words: string, by: 1 | -1): HTMLElement {
    const disabled = this.beside(by) === undefined ? "true" : undefined;
    return h("button", { type: "button", name, "aria-label": spoken, "aria-disabled": disabled, click: () => this.skip(by) }, words);
  }

  private stop(): void {
    clearInterval(this.timer);
    this.timer = undefined;
    const button = this.bar.querySelector<HTMLButtonElement>("[name=play]");
    if (button) button.textContent = "Play";
  }

  private play(): void {
    if (this.timer !== undefined) return this.stop();
    if (this.step === this.trace.events.length - 1) this.go(0);
    this.timer = setInterval(() => this.skip(1), 400);
    this.draw();
  }

  private key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (target.matches("input, select, .scroll") || event.ctrlKey || event.altKey || event.metaKey) return;
    const moves: Record<string, () => void> = {
      ArrowRight: () => this.skip(1),
      ArrowLeft: () => this.skip(-1),
      Home: () => this.go(0),
      End: () => this.go(this.trace.events.length - 1),
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    move();
  }

  private draw(): void {
    const focused = document.activeElement?.getAttribute("name");
    const { trace, state } = this;
    const step = this.step;
    const rungs = [...new Set(this.traces.map((t) => t.rung))];
    const variants = this.traces.filter((t) => t.rung === trace.rung);
    const choose = (key: string) => {
      this.stop();
      state.set({ k: key, step: 0, warp: 0 });
      this.draw();
    };
    const [, bits, accesses] = trace.events[step]!;
    const running = Array.from({ length: trace.warps }, (_, n) => n).filter((n) => (bits >>> n) & 1);
    const wanted = state.number("warp", 0, 0, trace.warps - 1);
    const lane = state.number("lane", 0, 0, 31);
    renew(
      this.top,
      labelled("Kernel", select(rungs.map((r) => [r, nameOf(r)]), trace.rung,
        (rung) => choose(this.traces.find((t) => t.rung === rung)!.key), "rung")),
      labelled("Tile, stages, threads", select(variants.map((t) => [t.key, t.config]), trace.key, choose, "k")),
      labelled("Warp", select(Array.from({ length: trace.warps }, (_, n) => [String(n), running.includes(n) ? String(n) : `${n} (not at this step)`]),
        String(wanted), (value) => { state.set({ warp: value }); this.draw(); }, "warp")),
      labelled(`Lane ${lane}`, slider(0, 31, lane, (value) => { state.set({ lane: value }); this.draw(); }, "lane")),
    );
    renew(
      this.bar,
      this.stepping("back", "step back", "◀ Back", -1),
      h("button", { type: "button", name: "play", click: () => this.play() }, this.timer === undefined ? "Play" : "Pause"),
      this.stepping("next", "next step", "Next ▶", 1),
      labelled("Stop at", select(this.skips.map(([value, words]) => [value, words]), this.kind[0],
        (value) => { state.set({ skip: value }); this.draw(); }, "skip")),
      h("label", { class: "wide" }, h("span", {}, `Step ${step + 1} of ${trace.events.length}`),
        slider(0, trace.events.length - 1, step, (value) => this.go(value), "step")),
    );
    this.body.replaceChildren(...this.panels(trace, step, accesses, running, wanted, lane));
    this.live.textContent = this.body.querySelector(".told")!.textContent;
    if (focused) document.querySelector<HTMLElement>(`#stepper [name="${focused}"]`)?.focus();
  }

  private panels(
    trace: Trace, step: number, accesses: Access[], running: number[], wanted: number, lane: number,
  ): HTMLElement[] {
    const [op, , , told] = trace.events[step]!;
    const what = trace.ops[op]!;
    const warp = running.includes(wanted) ? wanted : (running[0] ?? 0);
    const words: string[] = [];
    const made: HTMLElement[] = [];
    for (const access of accesses) {
      const lanes = lanesOf(trace, access, warp);
      const [where, writes, bytes] = access;
      if (where >= 0) {
        const children: (Node | string | null)[] = [matrix(trace, access, warp, lane)];
        if (lanes) {
          const boxes = sectorBoxes(lanes, bytes, lane);
          words.push(`${bytes} bytes per lane of ${trace.arrays[where]![0]}: ${plural(boxes.count, "sector")}.`);
          children.push(h("p", {}, boxes.words), boxes.drawing);
        }
        made.push(panel(`Global memory: warp ${warp} ${writes ? "writes" : "reads"} ${trace.arrays[where]![0]}`, ...children));
      } else if (lanes) {
        made.push(this.shared(trace, what.op, lanes, bytes, writes === 1, warp, lane, words));
      }
    }
    if (told.boxes?.length) made.push(this.boxes(trace, told.boxes));
    const held = fragments(what.op, lane, warp) ?? owners(trace, warp, lane);
    if (held) made.push(panel(fragments(what.op, lane, warp) ? "Registers: fragments" : "Result: who writes which element", held.drawing, h("p", {}, held.words)));
    if (told.operands?.length) {
      const region = (at: number) => trace.regions.find(([, start, size]) => at >= start && at < start + size)?.[0] ?? "shared memory";
      const side = (pair: [number, number] | null | undefined) => (pair ? `${region(pair[0])} from byte ${pair[0]} (rows of ${pair[1]} bytes)` : "registers");
      words.push(...told.operands.map((pair, n) => `Warpgroup ${n}: first operand in ${side(pair[0])}, second in ${side(pair[1])}.`));
    }
    const states = barriersAt(trace, step);
    if (states.length) made.push(this.barriers(trace, step));
    if (told.left !== undefined) words.push(told.left ? `All groups but the newest ${told.left} are there after it.` : "Every group is there after it.");
    const hazards = told.hazards?.map((hazard) => h("p", { class: "alarm", role: "alert" }, `Hazard: ${hazard}`)) ?? [];
    const who = running.length === trace.warps ? "all warps" : `${running.length === 1 ? "warp" : "warps"} ${running.join(", ")}`;
    const place = what.file ?? "";
    const head = h("div", { class: "code" },
      h("p", { class: "told" }, h("b", {}, kindOf(what.op)), ` by ${who}. ${words.join(" ")}`),
      ...hazards,
      what.code ? h("pre", { tabindex: 0 }, h("span", { class: "place" }, `${place}  `), what.code) : null,
      h("pre", { tabindex: 0, class: "ptx" }, what.ptx));
    const intro = h("p", { class: "idea" }, h("b", {}, nameOf(trace.rung)), `: ${trace.teaches}. `,
      h("span", { class: "faint-text" }, `${trace.problem}, ${trace.dtype}, config ${trace.config}; ${plural(trace.warps, "warp")} in the block.`));
    const title = trace.regions.length ? "Pipeline: light is under way, full is there, the thin line is being read" : "Its steps";
    const line = scrolled(pipeline(trace, step, (at) => this.go(at)));
    requestAnimationFrame(() => { // where the drawing is wider than its place, the step stays in sight
      line.scrollLeft = line.scrollWidth * placeOf(trace, step) - line.clientWidth / 2;
    });
    const pipe = panel(`${title}; a click goes there`, line);
    return [intro, head, pipe, h("div", { class: "panels", tabindex: 0, role: "group", "aria-label": "Pictures of the step; arrow keys step" }, ...made)];
  }

  private shared(
    trace: Trace, op: string, lanes: (number | null)[], bytes: number, writes: boolean, warp: number, lane: number, words: string[],
  ): HTMLElement {
    const kind = sharedKind(op);
    const found = bankGrid(lanes, bytes, kind, lane, "Banks");
    words.push(`${plural(found.found.count, "wavefront")} of shared memory (fewest ${found.found.ideal}).`);
    const children: (Node | string | null)[] = [h("p", {}, found.words), found.drawing];
    const first = lanes.find((at) => at !== null) ?? 0;
    const region = trace.regions.find(([, start, size]) => first >= start && first < start + size);
    const permuted = region && trace.swizzles[region[0].split(" ")[0]!];
    if (region && permuted) {
      const start = region[1];
      children.unshift(checkbox("As it would lie without the swizzle", this.state.get("plain", "") === "1",
        (value) => { this.state.set({ plain: value ? 1 : 0 }); this.draw(); }, "plain"));
      if (this.state.get("plain", "") === "1") {
        const before = bankGrid(lanes.map((at) => (at === null ? null : start + swizzle(at - start, permuted))), bytes, kind, lane, "Banks without the swizzle");
        children.push(h("p", {}, h("b", {}, "Without the swizzle: "), before.words), before.drawing);
      }
    }
    return panel(`Shared memory: warp ${warp} ${writes ? "writes" : "reads"}; numbers are lanes, colours wavefronts`, ...children);
  }

  private boxes(trace: Trace, boxes: NonNullable<Trace["events"][number][3]["boxes"]>): HTMLElement {
    const names = new Map(trace.barriers);
    const drawn = boxes.map((box) => {
      const [name, rows, columns] = trace.arrays[box.array] ?? ["?", 1, 1, 1];
      const cell = Math.min(320 / columns, 160 / rows);
      const [x, y] = [box.at[0]! * cell, box.at[1]! * cell];
      return drawing(columns * cell + 8, rows * cell + 24, `A box of ${name}`, `${box.box.join(" x ")} elements from ${box.at.join(", ")}`,
        text(4, 13, `${name}: ${rows} x ${columns}`, { class: "label" }),
        s("rect", { x: 4, y: 18, width: columns * cell, height: rows * cell, class: "frame" }),
        s("rect", { x: 4 + x, y: 18 + y, width: Math.min(box.box[0]! * cell, columns * cell - x), height: Math.min(box.box[1]! * cell, rows * cell - y), class: "s0" }));
    });
    const rows = boxes.map((box) => {
      const region = trace.regions.find(([, start, size]) => box.to >= start && box.to < start + size);
      const tells = box.mbarrier === null ? "" : `, tells mbarrier ${names.get(box.mbarrier) ?? box.mbarrier}`;
      return h("li", {}, `${box.box[0]} x ${box.box[1]} elements from column ${box.at[0]}, row ${box.at[1]}: ${box.bytes} bytes ${box.mbarrier === null ? "from" : "to"} shared byte ${box.to}${region ? ` (${region[0]})` : ""}, swizzle ${box.swizzle}${tells}`);
    });
    return panel("TMA: one thread starts the copy of a box", ...drawn, h("ul", {}, ...rows));
  }

  private barriers(trace: Trace, step: number): HTMLElement {
    const names = new Map(trace.barriers);
    const before = new Map(step ? barriersAt(trace, step - 1).map((state) => [state[0], state]) : []);
    const most = Math.max(1, ...trace.events.flatMap((event) => (event[4] ?? []).map((state) => state[4])));
    const rows = barriersAt(trace, step)
      .map((state) => ({ state, name: names.get(state[0]) ?? String(state[0]) }))
      .sort((a, b) => a.name.localeCompare(b.name))
      .map(({ state, name }) => {
        const [address, phase, pending, expected, missing] = state;
        const old = before.get(address);
        const changed = !old || old.some((value, n) => value !== state[n]);
        return h("tr", { class: changed ? "changed" : "" },
          h("th", { scope: "row" }, name), h("td", {}, `${phase} (parity ${phase % 2})`),
          h("td", {}, `${pending} of ${expected}`),
          h("td", {}, missing < 0 ? `${-missing} more than announced` : String(missing), h("div", { class: "bytes", style: `width:${(60 * Math.max(missing, 0)) / most}px` })));
      });
    return panel("mbarriers after this step", scrolled(h("table", {},
      h("thead", {}, h("tr", {}, ...["mbarrier", "phases done", "arrivals pending", "bytes in flight"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...rows))));
  }
}
