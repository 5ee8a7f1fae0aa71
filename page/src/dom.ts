// Elements of HTML and SVG, made in one call.

type Attributes = Record<string, string | number | boolean | undefined | ((event: Event) => void)>;
type Child = Node | string | null | undefined | false;

function fill(element: Element, attributes: Attributes, children: Child[]): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child) element.append(child);
}

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

export function s(tag: string, attributes: Attributes = {}, ...children: Child[]): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(element, attributes, children);
  return element;
}

/** Many rectangles as one path: a drawing of thousands stays quick. */
export function boxes(places: [x: number, y: number, width: number, height: number][], attributes: Attributes, title?: string): SVGElement {
  const round = (value: number) => Math.round(value * 100) / 100;
  const d = places.map(([x, y, w, h]) => `M${round(x)} ${round(y)}h${round(w)}v${round(h)}h${round(-w)}z`).join("");
  return s("path", { d, ...attributes }, title ? s("title", {}, title) : null);
}

/** A drawing with a title and a description for screen readers. Outlines of what is chosen lie above all else. */
export function drawing(width: number, height: number, title: string, description: string, ...body: Child[]): SVGElement {
  const made = s(
    "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title, style: `max-width:${width}px` },
    s("title", {}, title), s("desc", {}, description), ...body,
  );
  made.querySelectorAll("rect.chosen").forEach((chosen) => {
    const outline = s("rect", { class: "outline" });
    for (const name of ["x", "y", "width", "height"]) outline.setAttribute(name, chosen.getAttribute(name) ?? "0");
    made.append(outline);
  });
  return made;
}

export function text(x: number, y: number, words: string, attributes: Attributes = {}): SVGElement {
  return s("text", { x, y, ...attributes }, words);
}

/** A colour of the circle for one of `count`. */
export function hue(index: number, count: number): string {
  return `hsl(${Math.round((360 * index) / count)} 62% var(--lit))`;
}

/** Colours for things next to each other, in any number: blue and red first, which every eye tells apart. */
export function apart(index: number): string {
  return `hsl(${Math.round(210 + 137.5 * index) % 360} 62% var(--lit))`;
}

export function labelled(words: string, control: HTMLElement): HTMLLabelElement {
  return h("label", {}, h("span", {}, words), control);
}

export function select(
  options: [value: string, words: string][], value: string, change: (value: string) => void, name: string,
): HTMLSelectElement {
  const made = h("select", { name, change: () => change(made.value) });
  for (const [key, words] of options) made.append(h("option", { value: key, selected: key === value }, words));
  return made;
}

export function slider(
  low: number, high: number, value: number, change: (value: number) => void, name: string,
): HTMLInputElement {
  const made = h("input", {
    type: "range", min: low, max: high, value, name, input: () => change(Number(made.value)),
  });
  return made;
}

/** The controls of a bar as they are now. A slider that is there stays, changed: another in its place would end a drag. */
export function renew(bar: HTMLElement, ...controls: HTMLElement[]): void {
  controls.forEach((control, at) => {
    const old = bar.children[at];
    const [was, now] = [old, control].map((one) => one?.querySelector<HTMLInputElement>("input[type=range]"));
    if (old && was && now && was.name === now.name) {
      for (const name of ["max", "value"]) was.setAttribute(name, now.getAttribute(name)!);
      was.value = now.value;
      old.querySelector("span")!.textContent = control.querySelector("span")!.textContent;
    } else if (old) old.replaceWith(control);
    else bar.append(control);
  });
}

export function checkbox(words: string, value: boolean, change: (value: boolean) => void, name: string): HTMLLabelElement {
  const box = h("input", { type: "checkbox", name, checked: value, change: () => change(box.checked) });
  return h("label", { class: "check" }, box, h("span", {}, words));
}

export function plural(count: number, word: string): string {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}
