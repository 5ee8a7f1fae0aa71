// What the reader has chosen, kept in the page's address so that a link shows the same picture.

type Listener = () => void;

export class State {
  private values = new Map<string, string>();
  private listeners: Listener[] = [];

  constructor() {
    this.read();
    addEventListener("hashchange", () => {
      if (this.read()) this.listeners.forEach((listener) => listener());
    });
  }

  /** Whether the address holds a state: an anchor of the page has no "=". */
  private read(): boolean {
    const hash = location.hash.slice(1);
    if (!hash.includes("=")) return false;
    this.values = new Map([...new URLSearchParams(hash)]);
    return true;
  }

  get(name: string, otherwise: string): string {
    return this.values.get(name) ?? otherwise;
  }

  number(name: string, otherwise: number, low: number, high: number): number {
    const value = Number(this.values.get(name) ?? otherwise);
    return Number.isFinite(value) ? Math.min(Math.max(Math.round(value), low), high) : otherwise;
  }

  set(changes: Record<string, string | number>): void {
    for (const [name, value] of Object.entries(changes)) this.values.set(name, String(value));
    const text = [...this.values].map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
    history.replaceState(null, "", `#${text}`);
  }

  /** Called when the reader changes the address. */
  changed(listener: Listener): void {
    this.listeners.push(listener);
  }
}
