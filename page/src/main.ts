import * as rules from "./rules";
import { State } from "./state";
import { Stepper } from "./stepper";
import type { Trace } from "./trace";

function data<T>(id: string): T | null {
  const found = document.getElementById(id);
  return found?.textContent ? (JSON.parse(found.textContent) as T) : null;
}

const traces = data<Trace[]>("traces");
const root = document.getElementById("stepper");
const state = new State();
if (traces?.length && root) new Stepper(traces, state, root);

export { rules };
