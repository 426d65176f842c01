/// <reference lib="dom" />
import { button, checkbox, dropdown, element, pager, tableOf } from "./controls.ts";
import * as view from "./rollout-view.ts";

/** More rows, and more text, would hold the page up for seconds. */
const [rowsAPage, tokensAPage] = [2000, 20_000];

type Go = (changed: Partial<view.InspectorState>) => void;

interface Token {
  node: HTMLElement;
  segment: view.ShownSegment;
  t: number;
  block: view.Block;
}

/**
 * A rollout by turns and tokens, or those of a group side by side. `go` leads elsewhere; `state` is changed, and
 * `openSource` called, by what is pressed.
 */
export function renderShown(
  shown: view.Shown,
  state: view.InspectorState,
  go: Go,
  openSource: (place: string) => void,
): HTMLElement {
  const tokens: Token[] = [];
  const legend = element("ul", { class: "legend", "aria-label": "Legend" });
  const facts = element("div", { class: "facts", role: "status", "aria-label": "Token" });
  const { groupId } = shown.rollouts[0]!;
  const isGroup = shown.id === groupId;
  const recolor = (value: string) => {
    state.coloring = value as view.Coloring;
    paint(tokens, view.scaleOf(state.coloring), legend, shown.special);
  };
  const size = state.asTable ? rowsAPage : tokensAPage;
  // Of the blocks so far: pages go on from rollout to rollout.
  let count = 0;
  const articles = shown.rollouts.map((rollout) => {
    const about = element("dl", { class: "about" });
    for (const [name, value] of Object.entries(view.rolloutFacts(shown, rollout))) {
      about.append(element("div", {}, element("dt", {}, name), element("dd", {}, value)));
    }
    const { rolloutId, segments } = rollout;
    const title = link(rolloutId, () => go({ id: rolloutId }));
    const parts = segments.flatMap((segment, index) => {
      const text = `Segment ${index + 1} of ${segments.length}: ${segment.tokens.length} tokens`;
      const blocks = view.blocksOf(segment).flatMap((block) => {
        const from = state.tokenPage * size - count + block.start;
        count += block.end - block.start;
        const part = { ...block, start: Math.max(block.start, from), end: Math.min(block.end, from + size) };
        const isHere = part.end - part.start >= Math.min(1, block.end - block.start);
        return isHere ? [blockView(segment, part, state.asTable ? null : tokens, shown, openSource)] : [];
      });
      return [element("h3", {}, text), ...blocks];
    });
    return element("article", {}, ...(isGroup ? [element("h2", {}, title)] : []), about, ...parts);
  });
  const bar = element(
    "div",
    { class: "bar" },
    button("All rollouts", () => go({ id: null })),
    ...(isGroup ? [] : [button("Group side by side", () => go({ id: groupId }))]),
    ...(state.asTable ? [] : [dropdown("color tokens by", view.colorings, state.coloring, recolor)]),
    checkbox("as a table", state.asTable, (asTable) => go({ asTable, tokenPage: 0 })),
  );
  const turner = pager(state.tokenPage, Math.ceil(count / size), (tokenPage) => go({ tokenPage }));
  const why = shown.why === null ? [] : [element("p", {}, `Tokens are shown by their ids: ${shown.why}`)];
  const keys = "Arrow keys go through tokens (left, right) and turns (up, down); Enter opens the agent's line.";
  const columns = element("div", { class: isGroup && !state.asTable ? "side" : "" }, ...articles);
  const help = state.asTable ? [] : [legend, element("p", { class: "note" }, keys)];
  recolor(state.coloring);
  tokens[0]?.node.setAttribute("tabindex", "0");
  followKeys(columns, tokens, openSource, ({ segment, t, block }) => {
    const place = `${block.name} ${block.turn?.source ?? ""}`;
    const all = Object.entries({ ...view.tokenFacts(segment, t, shown.special), in: place });
    facts.replaceChildren(...all.map(([name, value]) => element("span", {}, element("b", {}, name), ` ${value}`)));
  });
  const more = count > size ? [turner] : [];
  return element("div", {}, bar, ...why, ...help, columns, ...more, ...(state.asTable ? [] : [facts]));
}

export function link(text: string, onClick: () => void): HTMLElement {
  const made = element("button", { class: "link" }, text);
  made.addEventListener("click", onClick);
  return made;
}

/** `tokens` takes those that can be reached; null draws a table. */
function blockView(
  segment: view.ShownSegment,
  block: view.Block,
  tokens: Token[] | null,
  { special }: view.Shown,
  openSource: (place: string) => void,
): HTMLElement {
  const { turn, name, start, end } = block;
  const label = `${name}, tokens ${start} to ${end - 1}`;
  const source = turn?.source;
  const file = source?.split(/[\\/]/).at(-1);
  const head = source ? link(`${name}, ${file}`, () => openSource(source)) : element("strong", {}, name);
  const said = turn
    ? `stop ${turn.stop}, ${turn.end - turn.start} tokens, temperature ${turn.temperature}, call ${turn.callId}` +
      (turn.reward === undefined ? "" : `, reward ${turn.reward}`) +
      (turn.cut ? `, ${turn.cut} tokens cut behind its stop string` : "")
    : "";
  const title = element("div", { class: "bar" }, head, element("span", { class: "note" }, said));
  if (start === end) return element("section", { class: "block", "aria-label": name }, title);
  const places = Array.from({ length: end - start }, (_, offset) => start + offset);
  if (!tokens) {
    const facts = places.map((t) => view.tokenFacts(segment, t, special));
    const table = tableOf(label, Object.keys(facts[0]!), facts.map(Object.values));
    return element("section", { class: "block", "aria-label": name }, title, table);
  }
  const list = element("div", { class: "tokens mono", role: "listbox", "aria-label": label });
  for (const t of places) {
    const text = view.tokenText(segment, t).replaceAll("⏎", "⏎\n");
    const node = element("span", { role: "option", "aria-selected": "false", tabindex: "-1" }, text);
    node.dataset.at = String(tokens.push({ node, segment, t, block }) - 1);
    list.append(node);
  }
  return element("section", { class: "block", "aria-label": name }, title, list);
}

/** The legend has what occurs. */
function paint(tokens: Token[], { entries, entryOf }: view.Scale, legend: HTMLElement, special: number[]): void {
  const counts = entries.map(() => 0);
  for (const { node, segment, t } of tokens) {
    const entry = entryOf(segment, t);
    if (entry >= 0) counts[entry]!++;
    const isSpecial = special.includes(segment.tokens[t]!);
    node.className = `token ${entries[entry]?.style ?? ""}${isSpecial ? " special" : ""}`;
  }
  const items = entries.flatMap(({ style, label }, at) => {
    const sample = element("span", { class: `token ${style}`, "aria-hidden": "true" }, "abc");
    return counts[at]! > 0 ? [element("li", {}, sample, ` ${label} (${counts[at]})`)] : [];
  });
  legend.replaceChildren(...(items.length > 0 ? items : [element("li", {}, "The run stored none for these tokens.")]));
}

/** One token at a time can be reached by Tab; arrow keys move on from it. */
function followKeys(
  root: HTMLElement,
  tokens: Token[],
  openSource: (place: string) => void,
  onFocus: (token: Token) => void,
): void {
  const tokenAt = ({ target }: Event) => tokens[Number((target as HTMLElement).dataset.at ?? -1)];
  const mark = ({ node }: Token, isOn: boolean) => {
    node.setAttribute("tabindex", isOn ? "0" : "-1");
    node.setAttribute("aria-selected", String(isOn));
  };
  let current = tokens[0];
  root.addEventListener("click", (event) => tokenAt(event)?.node.focus());
  root.addEventListener("focusin", (event) => {
    const token = tokenAt(event);
    if (!token) return;
    mark(current!, false);
    mark(token, true);
    current = token;
    onFocus(token);
  });
  root.addEventListener("keydown", (event) => {
    const token = tokenAt(event);
    if (!token) return;
    const at = tokens.indexOf(token);
    const { start, end, turn } = token.block;
    const first = at - (token.t - start);
    const before = tokens[first - 1]?.block;
    const moves: Record<string, number> = {
      ...{ ArrowRight: at + 1, ArrowLeft: at - 1, Home: first, End: first + (end - start) - 1 },
      ...{ ArrowDown: first + (end - start), ArrowUp: before ? first - (before.end - before.start) : -1 },
    };
    if (event.key === "Enter" && turn?.source) openSource(turn.source);
    else if (event.key in moves) tokens[moves[event.key]!]?.node.focus();
    else return;
    event.preventDefault();
  });
}
