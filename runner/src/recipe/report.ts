import { type Diagnostic, formatDiagnostic, positionOf } from "./diagnostic.ts";
import { guardrailRules } from "./guardrails/index.ts";

/** What code checkers are read by: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html */
export function sarif(problems: readonly Diagnostic[], version: string): object {
  const named = new Map(problems.map((problem) => [ruleId(problem), guardrailRules.get(problem.rule ?? "")?.holds]));
  const rules = [...named].map(([id, text]) => ({ id, ...(text && { shortDescription: { text } }) }));
  const results = problems.map((problem) => ({
    ruleId: ruleId(problem),
    level: { error: "error", warning: "warning", info: "note" }[problem.severity],
    message: { text: problem.message },
    ...locations(problem),
  }));
  return {
    $schema: "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
    version: "2.1.0",
    runs: [{ tool: { driver: { name: "molt-runner", version, rules } }, columnKind: "utf16CodeUnits", results }],
  };
}

function ruleId({ code, rule }: Diagnostic): string {
  return rule === undefined ? code : `${code}/${rule}`;
}

/** A flag has no place in a file. */
function locations(problem: Diagnostic): object {
  const { file, line, column } = positionOf(problem);
  if (file.startsWith("--")) return {};
  const own = problem.where === undefined ? region(problem.range) : { startLine: line, startColumn: column };
  const artifactLocation = { uri: uriOf(file) };
  return { locations: [{ physicalLocation: { artifactLocation, ...(line !== undefined && { region: own }) } }] };
}

function region({ start, end }: Diagnostic["range"]): object {
  return {
    startLine: start.line + 1,
    startColumn: start.character + 1,
    endLine: end.line + 1,
    endColumn: end.character + 1,
  };
}

function uriOf(path: string): string {
  return encodeURI(path.replaceAll("\\", "/")).replaceAll("#", "%23").replaceAll("?", "%3F");
}

/** Workflow commands, which GitHub shows at the lines of a change. */
export function github(problems: readonly Diagnostic[]): string[] {
  return problems.map((problem) => {
    const { file, line, column } = positionOf(problem);
    const place = file.startsWith("--") ? {} : { file, line, col: column };
    const properties = Object.entries({ ...place, title: `molt-runner ${ruleId(problem)}` })
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => `${name}=${escapeCommand(String(value)).replaceAll(":", "%3A").replaceAll(",", "%2C")}`);
    const level = problem.severity === "info" ? "notice" : problem.severity;
    const message = file.startsWith("--") ? formatDiagnostic({ ...problem, severity: "error" }) : problem.message;
    return `::${level} ${properties.join(",")}::${escapeCommand(message)}`;
  });
}

function escapeCommand(text: string): string {
  return text.replaceAll("%", "%25").replaceAll("\r", "%0D").replaceAll("\n", "%0A");
}
