import { bankplay } from "./bankplay";
import { draw } from "./charts";
import { figures } from "./figures";
import { roof, type Roofs } from "./roof";
import * as rules from "./rules";
import { State } from "./state";
import { Stepper } from "./stepper";
import { strides } from "./strides";
import { threads } from "./threads";
import { tiles } from "./tiles";
import type { Trace } from "./trace";

function data<T>(id: string): T | null {
  const found = document.getElementById(id);
  return found?.textContent ? (JSON.parse(found.textContent) as T) : null;
}

const traces = data<Trace[]>("traces");
const root = document.getElementById("stepper");
const state = new State();
if (traces?.length && root) new Stepper(traces, state, root);
const roofs = data<Roofs>("roofs");
const drawings: Record<string, (root: HTMLElement, state: State) => void> = { threads, tiles, banks: bankplay, strides };
if (roofs) drawings.roof = (place, kept) => roof(place, kept, roofs);
for (const [id, draw] of Object.entries(drawings)) {
  const place = document.getElementById(`play-${id}`);
  if (place) draw(place, state);
}
figures([...document.querySelectorAll<HTMLElement>(".chart")]);

export { draw, rules };
