/// <reference lib="dom" />
// What runs in a webview speaks to the extension through this alone.

declare function acquireVsCodeApi(): Record<"postMessage" | "setState", (message: unknown) => void> & {
  getState(): unknown;
};

const host = acquireVsCodeApi();

export const post = (message: unknown) => host.postMessage(message);

export function onMessage<Message>(listener: (message: Message) => void): void {
  window.addEventListener("message", ({ data }) => listener(data as Message));
}

/** Kept while the page is hidden, and over a reload of the window. */
export const savedState = <State>() => (host.getState() ?? {}) as Partial<State>;
export const saveState = (state: unknown) => host.setState(state);
