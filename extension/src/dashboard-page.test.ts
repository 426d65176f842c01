// @vitest-environment happy-dom
/// <reference lib="dom" />
import { beforeEach, expect, it } from "vitest";
import { all, one, openPage, painted, press, say, scrollTo, told } from "./fixtures/page.ts";
import type { RunStatus, ToPage } from "./messages.ts";

const open = (state?: object) => openPage(() => import("./dashboard-page.ts"), state);
const send = (message: ToPage) => say(message);
beforeEach(() => open());

const directories = ["/w/a", "/w/b", "/w/c"];
const runsOf = (...shown: string[]) => {
  const runs = directories.map((directory) => ({ directory, name: `run ${directory.at(-1)}` }));
  return { type: "runs" as const, runs, shown };
};

/** Steps `from` to `to` of metrics that are the step's number each. */
function rows(directory: string, from: number, to: number, names = ["reward"]): ToPage {
  const steps = Float64Array.from({ length: to - from + 1 }, (_, at) => from + at);
  return {
    type: "rows",
    directory,
    from,
    tables: [{ table: "", steps, columns: names.map((name) => ({ name, values: steps })) }],
  };
}

const alarm = (step: number) => {
  const said = { rule: "no_signal", severity: "alarm" as const, message: `at ${step}`, rolloutIds: [`r/${step}`] };
  return { type: "health" as const, time: step, step, ...said };
};
const status = (directory: string, alarms: RunStatus["alarms"]): ToPage => {
  return { type: "status", status: { directory, label: "", standing: "live", alarms } };
};

const charts = () => all("figure");
const slider = (chart = 0) => all('[role="slider"]')[chart]!;
const stepOf = (chart = 0) => Number(slider(chart).getAttribute("aria-valuenow"));

async function showOne(names?: string[]): Promise<void> {
  await send(runsOf("/w/a"));
  await send(rows("/w/a", 1, 100, names));
  await scrollTo(charts());
}

it("the cross-hair stays at its step when data arrive", async () => {
  await showOne();
  one(".u-over").dispatchEvent(new MouseEvent("mousemove", { clientX: 270, clientY: 10, bubbles: true }));
  const step = stepOf();
  expect(step).toBeGreaterThan(25);
  for (const last of [120, 150, 200]) {
    await send(rows("/w/a", last - 10, last));
    expect(stepOf()).toBe(step);
  }
  expect(one(".readout").textContent).toBe(`step ${step} · A ${step}`);
  press(slider(), "Home");
  await send(rows("/w/a", 201, 300));
  expect(stepOf()).toBe(1);
});

it("a chart that is scrolled to later stands where the cross-hair does", async () => {
  await showOne(["reward", "loss"]);
  await scrollTo([charts()[1]!], false);
  press(slider(), "End");
  await scrollTo([charts()[1]!]);
  expect([stepOf(0), stepOf(1)]).toEqual([100, 100]);
  // One that was not there then.
  await send(rows("/w/a", 1, 100, ["reward", "loss", "entropy"]));
  await scrollTo(charts());
  expect(charts().map((_, at) => stepOf(at))).toEqual([100, 100, 100]);
});

it("leaves keys with Ctrl, Alt or Meta to the editor", async () => {
  await showOne();
  press(slider(), "Home");
  for (const modifier of ["ctrlKey", "altKey", "metaKey"]) {
    for (const key of ["ArrowRight", "End", "+", "-", "0"]) {
      expect(press(slider(), key, { [modifier]: true }).defaultPrevented).toBe(false);
    }
  }
  expect(stepOf()).toBe(1);
  expect(press(slider(), "End").defaultPrevented).toBe(true);
  expect(stepOf()).toBe(100);
});

it("the keyboard stays where it is, whatever arrives", async () => {
  await showOne();
  await send(status("/w/a", [alarm(1), alarm(2)]));
  const stays = async (node: HTMLElement, message: ToPage) => {
    node.focus();
    const [label, text] = [node.getAttribute("aria-label"), node.textContent];
    await send(message);
    const { activeElement } = document;
    expect([activeElement?.getAttribute("aria-label"), activeElement?.textContent]).toEqual([label, text]);
  };
  await stays(slider(), rows("/w/a", 101, 102, ["another", "entropy", "reward"]));
  await stays(slider(), runsOf("/w/a"));
  await stays(one("vscode-button[aria-label*='at step 2']"), status("/w/a", [alarm(1), alarm(2), alarm(3)]));
  const more = { ...runsOf("/w/a"), runs: [{ directory: "/w/new", name: "run new" }, ...runsOf().runs] };
  await stays(one("vscode-checkbox", "run b"), more);
  await stays(one("vscode-checkbox", "run b"), runsOf("/w/a", "/w/b"));
});

const checked = () => {
  return all("vscode-checkbox").flatMap((box) => ((box as HTMLInputElement).checked ? box.textContent!.trim() : []));
};

it("check-boxes say what is shown, and change that alone, after Compare too", async () => {
  await send(runsOf("/w/a"));
  expect(checked()).toEqual(["run a"]);
  await send(runsOf("/w/b", "/w/c"));
  expect(checked()).toEqual(["run b", "run c"]);
  const shows = () => told.flatMap(({ type, directories }) => (type === "show" ? [directories] : []));
  expect(shows()).toEqual([]);
  one("vscode-checkbox", "run b").click();
  expect(shows()).toEqual([["/w/c"]]);
  // Before that is answered.
  one("vscode-checkbox", "run a").click();
  expect(shows().at(-1)).toEqual(["/w/c", "/w/a"]);
  // One that is deleted goes.
  await send({ ...runsOf("/w/c"), runs: runsOf().runs.slice(1) });
  expect(all("vscode-checkbox").map((box) => box.textContent!.trim())).toEqual(["run b", "run c"]);
  await send({ type: "runs", runs: [], shown: [] });
  expect(document.body.textContent).toContain("No run is in this workspace yet");
});

it("lists the newest alarms and says of how many", async () => {
  await showOne();
  await send(
    status(
      "/w/a",
      Array.from({ length: 100 }, (_, at) => alarm(at)),
    ),
  );
  expect(one("details:has(.alarms) summary").textContent).toBe("Alarms");
  await send(
    status(
      "/w/a",
      Array.from({ length: 150 }, (_, at) => alarm(at)),
    ),
  );
  expect(all(".alarms li").map((item) => item.textContent)).toHaveLength(100);
  expect(one("details:has(.alarms) summary").textContent).toBe("Alarms: the newest 100 of 150");
  expect(one(".alarms li:last-child").textContent).toContain("step 149");
});

it("a table behind 10 runs of 100,000 steps has some of them, and all in a narrow range", async () => {
  const many = Array.from({ length: 10 }, (_, run) => `/w/${run}`);
  const runs = many.map((directory) => ({ directory, name: directory }));
  await send({ type: "runs", runs, shown: many });
  for (const [run, directory] of many.entries()) await send(rows(directory, 1 + run, 100_000 + run));
  await scrollTo(charts());
  one("vscode-button", "Table").click();
  await painted();
  const cells = () => all("figure table tr").map((row) => [...row.children].map((cell) => cell.textContent));
  expect(one("figure caption").textContent).toContain("200 of its steps");
  expect(
    cells()
      .slice(1)
      .map(([step]) => step),
  ).toEqual(Array.from({ length: 200 }, (_, at) => String(1 + 500 * at)));
  expect(cells()[1]!.slice(1)).toEqual(["1", ...new Array(9).fill("–")]);
  for (let pressed = 0; pressed < 10; pressed++) press(slider(), "+");
  await painted();
  expect(one("figure caption").textContent).not.toContain("of its steps");
  expect(cells().length).toBeGreaterThan(50);
});

it("text that turns the page around is shown by its number, wherever it comes from", async () => {
  const evil = "a\u202eb\u0000";
  await send({ type: "runs", runs: [{ directory: "/w/a", name: evil }], shown: ["/w/a"] });
  await send({
    type: "status",
    status: {
      directory: "/w/a",
      label: evil,
      standing: evil,
      alarms: [{ ...alarm(3), rule: evil, key: evil, message: evil }],
    },
  });
  await send(rows("/w/a", 1, 9, ["reward", `info/${evil}`]));
  const values = [evil, evil].map((value) => ({ value, source: evil }));
  await send({ type: "differences", differences: [{ key: evil, values }], problem: evil });
  await scrollTo(charts());
  for (let at = 0; at < 3; at++) press(slider(), "ArrowRight");
  press(slider(), "Home");
  press(slider(), "ArrowRight");
  const html = document.body.innerHTML;
  expect(["\u202e", "\u0000"].filter((character) => html.includes(character))).toEqual([]);
  expect(html.split("a\\u{202e}b\\u{0}").length).toBeGreaterThan(8);
});
