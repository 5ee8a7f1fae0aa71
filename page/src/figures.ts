// Places of charts in the page: each is drawn as wide as it is, and a mark says its figure to pointer, touch and keys.

import { draw, type Chart } from "./charts";
import { h } from "./dom";

/** A chart whose marks can be pointed at, touched, and walked by arrow keys once it has the focus. */
export function figure(chart: Chart, width: number): HTMLElement {
  const svg = draw(chart, width);
  const marks = [...svg.querySelectorAll("title")].map((title) => {
    const mark = title.parentElement! as Element;
    title.remove(); // or else the browser would show the words once more
    return { mark, words: title.textContent! };
  });
  const tip = h("output", { class: "tip" });
  const place = h("div", { class: "marks" }, svg, tip);
  let at = -1;
  const show = (index: number) => {
    marks[at]?.mark.classList.remove("pointed");
    at = index;
    const one = marks[at];
    tip.textContent = one?.words ?? "";
    if (!one) return;
    one.mark.classList.add("pointed");
    const [box, mark] = [place.getBoundingClientRect(), one.mark.getBoundingClientRect()];
    tip.style.left = `${Math.max(0, Math.min(mark.x + mark.width / 2 - box.x - tip.offsetWidth / 2, box.width - tip.offsetWidth))}px`;
    const above = mark.y - box.y - tip.offsetHeight - 4;
    tip.style.top = `${above < 0 ? mark.bottom - box.y + 4 : above}px`;
  };
  const gap = (mark: Element, event: PointerEvent) => {
    if (mark === event.target) return -1;
    if (mark.tagName === "path") return Infinity; // the box of a line holds all that lies around it
    const box = mark.getBoundingClientRect();
    return Math.hypot(Math.max(box.x - event.x, 0, event.x - box.right), Math.max(box.y - event.y, 0, event.y - box.bottom));
  };
  const near = (event: PointerEvent) => {
    const gaps = marks.map(({ mark }) => gap(mark, event));
    const least = Math.min(...gaps);
    show(least < 12 ? gaps.indexOf(least) : -1);
  };
  const steps: Record<string, () => number> = {
    ArrowRight: () => (at + 1) % marks.length, ArrowLeft: () => (at > 0 ? at : marks.length) - 1,
    Home: () => 0, End: () => marks.length - 1, Escape: () => -1,
  };
  svg.tabIndex = 0;
  svg.addEventListener("pointermove", near);
  svg.addEventListener("pointerdown", near);
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") show(-1); });
  svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) show(0); });
  svg.addEventListener("blur", () => show(-1));
  svg.addEventListener("keydown", (event) => {
    const step = steps[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    show(step());
  });
  return place;
}

/** Draws every place that has a width, and each anew when its width changes: a closed card's has none until it opens. */
export function figures(places: HTMLElement[]): void {
  const charts = new Map(places.map((place) => [place as Element, { chart: JSON.parse(place.textContent!) as Chart, width: 0 }]));
  const render = (place: Element, width: number) => {
    const known = charts.get(place)!;
    if (!width || width === known.width) return;
    known.width = width;
    place.replaceChildren(figure(known.chart, width));
  };
  const widths = places.map((place) => (place.checkVisibility() ? place.clientWidth : 0));
  places.forEach((place, n) => render(place, widths[n]!));
  const observer = new ResizeObserver((changed) => requestAnimationFrame(() => {
    for (const { target } of changed) render(target, target.clientWidth);
  }));
  places.forEach((place) => observer.observe(place));
}
