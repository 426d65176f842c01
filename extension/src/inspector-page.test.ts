// @vitest-environment happy-dom
/// <reference lib="dom" />
import { expect, it, vi } from "vitest";
import type { Turn } from "../../runner/src/agents/types.ts";
import { all, one, openPage, press, say, told } from "./fixtures/page.ts";
import type { InspectorState, Shown, ShownSegment, ToInspector } from "./rollout-view.ts";

// Of these controls happy-dom knows too little: they are elements that do nothing.
vi.mock("@vscode/webview-ui-toolkit", async (original) => {
  const nothing = () => ({ register() {} });
  return { ...(await original<object>()), vsCodeDropdown: nothing, vsCodeOption: nothing, vsCodeTextField: nothing };
});

const open = (state?: object) => openPage(() => import("./inspector-page.ts"), state);
const send = (message: ToInspector) => say(message);

function segmentOf(length: number, turns: Turn[] = [], text = "x"): ShownSegment {
  const values = () => new Float32Array(length);
  return {
    ...{ tokens: new Int32Array(length), mask: new Uint8Array(length), versions: new Int32Array(length), turns },
    values: { logprob: values(), gap: values(), advantage: values(), entropy: values(), age: values() },
    texts: Array.from({ length }, () => text),
  };
}

const turnOf = (start: number, end: number): Turn => ({ start, end, callId: "c", stop: "stop", temperature: 1 });

/** Rollouts of group `g`, a segment each. */
function shownOf(id: string, ...segments: ShownSegment[]): { type: "shown"; shown: Shown } {
  const timings = { startedAt: 0, seconds: 1, modelSeconds: 1 };
  const common = { runId: "r", promptId: "p", groupId: "g", attempt: 0, reward: 0, score: 0, info: {}, timings };
  const rollouts = segments.map((segment, at) => {
    return { ...common, rolloutId: `g/${at}`, stop: "stop" as const, segments: [segment] };
  });
  return { type: "shown", shown: { id, step: 1, dropped: null, rollouts, special: [], why: null } };
}

const go = (id: string | null): ToInspector => ({ type: "go", directory: "/run", id, query: {} });
const row = { step: 1, reward: 0, stop: "stop" as const, turns: 1, tokens: 1, trained: 0, dropped: null, group: "g" };
const list = (ids: string[], isNews = false): ToInspector => {
  const rows = ids.map((rollout) => ({ ...row, rollout }));
  return { type: "list", isNews, rows, matching: rows.length, stored: rows.length, stops: ["stop"], drops: [] };
};

/** As after a reload, in which this was shown. */
async function show(state: Partial<InspectorState>, ...segments: ShownSegment[]): Promise<void> {
  const id = segments.length > 1 ? "g" : "g/0";
  await open({ directory: "/run", id, ...state });
  await send(shownOf(id, ...segments));
}

const tokens = () => all(".tokens > *");
const numbers = () => {
  const firsts = all("article tr").map((row) => row.firstElementChild!);
  return firsts.flatMap((cell) => (cell.getAttribute("scope") === "row" ? Number(cell.textContent) : []));
};

it("a table is turned in pages of 2,000 tokens, from rollout to rollout", async () => {
  await show({ asTable: true }, segmentOf(1500, [turnOf(500, 1500)]), segmentOf(700));
  expect(numbers()).toEqual([...Array(1500).keys(), ...Array(500).keys()]);
  expect(one(".bar:last-child").textContent).toBe("Page 1 of 2Next page");
  one("vscode-button", "Next page").click();
  expect(numbers()).toEqual(Array.from({ length: 200 }, (_, at) => 500 + at));
  // Of 100,000 tokens no more are drawn.
  await show({ asTable: true, tokenPage: 49 }, segmentOf(1600), segmentOf(98_400 - 1900));
  expect(numbers()).toEqual(Array.from({ length: 100 }, (_, at) => 96_400 + at));
  expect(one(".bar:last-child").textContent).toBe("Previous pagePage 50 of 50");
  one("vscode-button", "Previous page").focus();
  await send(shownOf("g", segmentOf(1600), segmentOf(96_500)));
  expect(document.activeElement?.textContent).toBe("Previous page");
});

it("text of many tokens is turned in pages of 20,000, and arrow keys go through what is there", async () => {
  await show({ tokenPage: 1 }, segmentOf(20_100, [turnOf(19_000, 20_100)]));
  expect(tokens()).toHaveLength(100);
  tokens()[0]!.focus();
  press(tokens()[0]!, "End");
  expect(document.activeElement).toBe(tokens()[99]);
  expect(one(".facts").textContent).toContain("token 20099");
  // Another rollout begins at its beginning, and so does a table.
  await send(go("g/9"));
  await send(shownOf("g/9", segmentOf(3)));
  expect(tokens()).toHaveLength(3);
});

it("a turn without tokens is there, without any", async () => {
  await show({}, segmentOf(4, [turnOf(1, 1), turnOf(2, 4)]));
  const said = () => all(".block").map((block) => `${block.getAttribute("aria-label")}: ${block.textContent}`);
  expect(said()[1]).toMatch(/^Turn 1: Turn 1stop stop, 0 tokens/);
  expect(all(".block")).toHaveLength(4);
  tokens()[0]!.focus();
  for (const key of ["ArrowDown", "ArrowDown", "ArrowUp"]) press(document.activeElement!, key);
  expect(document.activeElement).toBe(tokens()[1]);
  one("vscode-checkbox").click();
  expect(said()[1]).toMatch(/^Turn 1: Turn 1stop stop, 0 tokens/);
  expect(numbers()).toEqual([0, 1, 2, 3]);
});

it("a problem is that of what is shown, not of what was left", async () => {
  await open();
  await send(go("g/0"));
  await send(go(null));
  await send(list(["g/0"]));
  await send({ type: "problem", id: "g/0", message: "no such rollout" });
  expect(document.body.textContent).not.toContain("no such rollout");
  await send({ type: "problem", id: null, message: "a broken shard" });
  expect(document.body.textContent).toContain("a broken shard");
});

it("a list that arrives leaves the keyboard, and what is being typed, where they are", async () => {
  await open();
  await send(go(null));
  await send(list(["g/0"]));
  const field = one("vscode-text-field[aria-label='group']") as HTMLInputElement;
  field.focus();
  field.value = "half of a na";
  await send(list(["g/0", "g/1"]));
  const now = document.activeElement as HTMLInputElement;
  expect([now.getAttribute("aria-label"), now.value]).toEqual(["group", "half of a na"]);
  expect(all("tbody tr")).toHaveLength(2);
  // News leave the filters as they are, and the keyboard on what it was on.
  const [filters, link] = [one('[aria-label="Filters"]'), () => one("tbody .link", "g/1")];
  await send(list(["g/2", "g/1", "g/0"], true));
  expect([document.activeElement, one('[aria-label="Filters"]')]).toEqual([now, filters]);
  link().focus();
  await send(list(["g/3", "g/2", "g/1", "g/0"], true));
  expect([document.activeElement, all("tbody tr").length]).toEqual([link(), 4]);
  // Behind a problem comes the whole list.
  await send({ type: "problem", id: null, message: "a broken shard" });
  await send(list(["g/0"], true));
  expect([all('[aria-label="Filters"]').length, document.body.textContent.includes("broken")]).toEqual([1, false]);
});

it("comes back after a reload as it was, and asks for what it showed", async () => {
  const query = { sort: "reward", descending: false, page: 2 };
  await open({ directory: "/run", query, id: null, coloring: "gap", asTable: true });
  expect(told).toEqual([{ type: "list", query, anew: false }, { type: "ready" }]);
});

it("text that turns the page around is shown by its number, wherever it comes from", async () => {
  const evil = "a\u202eb\u0000";
  await open();
  await send({ ...go(null), directory: `/runs/${evil}` } as ToInspector);
  const rows = [{ ...row, rollout: evil, stop: evil, dropped: evil, group: evil }];
  await send({ type: "list", rows, matching: 1, stored: 1, stops: [evil], drops: [evil] } as ToInspector);
  const isClean = () => {
    const html = document.body.innerHTML;
    expect(["\u202e", "\u0000"].filter((character) => html.includes(character))).toEqual([]);
    return html.split("a\\u{202e}b\\u{0}").length;
  };
  expect(isClean()).toBeGreaterThan(5);
  const message = shownOf(evil, segmentOf(2, [{ ...turnOf(0, 1), callId: evil, source: `${evil}:3` }], evil));
  Object.assign(message.shown, { why: evil, dropped: evil });
  Object.assign(message.shown.rollouts[0]!, { rolloutId: evil, groupId: evil, stop: evil, info: { [evil]: 1 } });
  await send(go(evil));
  await send(message);
  tokens()[0]!.focus();
  expect(isClean()).toBeGreaterThan(8);
});
