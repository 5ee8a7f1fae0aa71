// Pictures for README and docs: the page's own charts, drawn without a browser.
// Standard input: {name: chart} as JSON. Standard output: {name: SVG}.

import { readFileSync } from "node:fs";
import { parseHTML } from "linkedom";

const read = (path) => readFileSync(new URL(`../src/tilewright/report/${path}`, import.meta.url), "utf8");
const { document } = parseHTML("<html><body></body></html>");
const browser = { document, location: { hash: "" }, addEventListener() {}, ResizeObserver: class {} }; // what the script starts with
const { draw } = new Function(...Object.keys(browser), `${read("built/page.js")}; return tilewright;`)(...Object.values(browser));
const colours = read("colours.css").replace(/\/\*.*?\*\/|\s+/gs, " ").trim();

function picture(chart) {
  const svg = draw(chart, 720, document);
  svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  for (const element of svg.querySelectorAll("*"))
    for (const { name, value } of [...element.attributes])
      element.setAttribute(name, value.replace(/\d+\.\d{3,}/g, (number) => String(Math.round(100 * number) / 100)));
  const [style, ground] = ["style", "rect"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  style.textContent = colours;
  for (const name of ["width", "height"]) ground.setAttribute(name, svg.getAttribute(name));
  ground.setAttribute("fill", "var(--paper)");
  svg.prepend(style, ground);
  return `${svg}\n`;
}

const charts = JSON.parse(readFileSync(0, "utf8"));
const pictures = Object.entries(charts).map(([name, chart]) => [name, picture(chart)]);
console.log(JSON.stringify(Object.fromEntries(pictures)));
