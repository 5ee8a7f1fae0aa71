// A drawing with controls: declared once, kept in the address, drawn anew at every change.

import { h, labelled, renew, select, slider } from "./dom";
import type { State } from "./state";

export interface Choice {
  name: string;
  words: string;
  options: [value: string, words: string][];
  first: string;
}
export interface Range {
  name: string;
  words: string;
  low: number;
  high: number;
  first: number;
}
export type Control = Choice | Range;
export type Values = { text(name: string): string; number(name: string): number };
type Drawn = (Node | string)[];

/** `root`'s drawing, below its first paragraph, which is read aloud when it changes; names in the address begin with
 * `root`'s id, less "play-". */
export function explorer(
  root: HTMLElement, state: State, controls: Control[], draw: (values: Values, set: (changes: Record<string, string | number>) => void) => Drawn,
): void {
  const bar = h("div", { class: "controls" });
  const told = h("div", { "aria-live": "polite" });
  const body = h("div", { class: "explored" });
  root.append(bar, told, body);
  const key = (name: string) => `${root.id.replace("play-", "")}.${name}`;
  const of = (name: string) => controls.find((control) => control.name === name)!;
  const values: Values = {
    text(name) {
      const control = of(name) as Choice;
      const value = state.get(key(name), control.first);
      return control.options.some(([option]) => option === value) ? value : control.first;
    },
    number(name) {
      const control = of(name);
      if ("options" in control) return Number(values.text(name));
      return state.number(key(name), control.first, control.low, control.high);
    },
  };
  const set = (changes: Record<string, string | number>) => {
    state.set(Object.fromEntries(Object.entries(changes).map(([name, value]) => [key(name), value])));
    render();
  };
  function render(): void {
    const focused = root.contains(document.activeElement) ? document.activeElement?.getAttribute("name") : null;
    renew(
      bar, ...controls.map((control) =>
        "options" in control
          ? labelled(control.words, select(control.options, values.text(control.name), (value) => set({ [control.name]: value }), key(control.name)))
          : labelled(`${control.words}: ${values.number(control.name)}`,
              slider(control.low, control.high, values.number(control.name), (value) => set({ [control.name]: value }), key(control.name))),
      ),
    );
    const [words, ...others] = draw(values, set);
    told.replaceChildren(words!);
    body.replaceChildren(...others);
    if (focused) bar.querySelector<HTMLElement>(`[name="${focused}"]`)?.focus();
  }
  state.changed(render);
  render();
}

export function choices(values: (string | number)[]): [string, string][] {
  return values.map((value) => [String(value), String(value)]);
}
