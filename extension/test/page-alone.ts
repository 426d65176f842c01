// A page of the extension in a browser tab, without VS Code: under the same policy, with a host that only listens.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import axe, { type AxeResults } from "axe-core";
import type { Browser, Frame, Page } from "playwright-core";
import { pageHtml } from "../src/page-html.ts";

const origin = "http://page.test";

export interface Alone {
  page: Page;
  /** What the page told its host so far. */
  told(): Promise<{ type: string }[]>;
  /** What the browser complained of: errors, and what the policy refused. */
  complaints: string[];
}

/** Variables that VS Code gives a page, by the theme's kind. Names as VS Code has them, without `--vscode-`. */
export const themes = {
  dark: { foreground: "#cccccc", "editor-background": "#1f1f1f", "panel-border": "#2b2b2b", focusBorder: "#0078d4" },
  light: { foreground: "#3b3b3b", "editor-background": "#ffffff", "panel-border": "#e5e5e5", focusBorder: "#005fb8" },
  "high-contrast": {
    ...{ foreground: "#ffffff", "editor-background": "#000000", "panel-border": "#6fc3df", focusBorder: "#f38518" },
    ...{ contrastBorder: "#6fc3df" },
  },
} satisfies Record<string, Record<string, string>>;

/** `dist`: the extension's, which is built. No request leaves the browser. */
export async function openAlone(
  browser: Browser,
  dist: string,
  name: string,
  theme: keyof typeof themes = "dark",
): Promise<Alone> {
  const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  const complaints: string[] = [];
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
  await page.addInitScript((variables: Record<string, string>) => {
    const told: unknown[] = [];
    let state: unknown = JSON.parse(sessionStorage.getItem("state") ?? "null");
    const host = {
      postMessage: (message: unknown) => told.push(message),
      getState: () => state,
      setState: (given: unknown) => {
        state = given;
        sessionStorage.setItem("state", JSON.stringify(given));
      },
    };
    Object.assign(globalThis, { acquireVsCodeApi: () => host, told });
    document.addEventListener("DOMContentLoaded", () => {
      for (const [key, value] of Object.entries(variables)) {
        document.documentElement.style.setProperty(`--vscode-${key}`, value);
      }
    });
  }, themes[theme]);
  const html = pageHtml({ title: "Alone", script: `${name}.js`, style: "page.css" });
  await page.route("**/*", async (route) => {
    const { pathname, origin: asked } = new URL(route.request().url());
    const file = pathname.slice(1);
    if (asked !== origin) await route.abort();
    else if (file === "") await route.fulfill({ contentType: "text/html", body: html });
    else if (/^[\w-]+\.(js|css)$/.test(file)) {
      const contentType = file.endsWith(".js") ? "text/javascript" : "text/css";
      await route.fulfill({ contentType, body: await readFile(join(dist, file)) });
    } else await route.fulfill({ status: 204 });
  });
  await page.goto(`${origin}/`);
  return { page, complaints, told: () => page.evaluate("told") as Promise<{ type: string }[]> };
}

/** What axe-core finds serious or worse, a line each: rule, what it asks for, where. */
export async function seriousViolations(page: Page | Frame): Promise<string[]> {
  await page.evaluate(axe.source);
  const { violations } = (await page.evaluate("axe.run()")) as AxeResults;
  const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  return serious.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ target }) => target).join(", ")}`);
}
