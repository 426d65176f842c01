import { recipeReads } from "./recipe-readers.ts";
import { bare, docOf, type Node, nameOf, properties, walk, wordsOf } from "./syntax.ts";

/** What a name in code stands for. A key's name is its dotted path, sections included; an agent's is its class's. */
export type CodeKind = "key" | "estimator" | "loss" | "filter" | "metric" | "event" | "agent";

/** A place that names something: both from 0, `character` and `length` in UTF-16 units. */
export interface Mention {
  kind: CodeKind;
  name: string;
  line: number;
  character: number;
  length: number;
  /** This place is where it is made; others only use it. */
  defines?: true;
  /** Where the name is not written as a plain word. */
  form?: "quoted" | "shorthand";
  /** Of a registry's entry: the function's identifier. */
  target?: string;
}

/** Recipe keys whose values are names of a registry. */
export const registryKinds: Readonly<Record<string, CodeKind>> = {
  "algo.advantage.estimator": "estimator",
  "actor.loss_mode": "loss",
  "algo.dynamic_filtering": "filter",
};

/** All that a module says of recipe keys, registries, metrics, events and agents. `path` has forward slashes. */
export function mentionsOf(program: Node, path: string): Mention[] {
  const section = /(?:^|\/)recipe\/schema\/([\w-]+)\.ts$/.exec(path)?.[1];
  const keys = section === undefined ? readKeys(program) : schemaKeys(program, section);
  const nodes = walk(program);
  const all = [...keys, ...registries(program), ...agents(nodes), ...events(program, nodes), ...metrics(nodes)];
  const placeOf = ({ kind, name, line, character }: Mention) => `${kind} ${name} ${line} ${character}`;
  // Of two about one place the first stays: an assignment is met before its left side.
  const seen = new Set<string>();
  return all.filter((one) => !seen.has(placeOf(one)) && seen.add(placeOf(one)));
}

function mention(kind: CodeKind, name: string, node: Node, more: Partial<Mention> = {}): Mention {
  const { line, column } = node.loc.start;
  const form = node.type === "Literal" ? ({ form: "quoted" } as const) : {};
  return { kind, name, line: line - 1, character: column, length: node.end - node.start, ...form, ...more };
}

/** By a property's name. */
function named(kind: CodeKind, property: Node, more?: Partial<Mention>): Mention {
  const form = property.shorthand ? ({ form: "shorthand" } as const) : {};
  return mention(kind, nameOf(property)!, property.key as Node, { ...form, ...more });
}

/** Of a string that is written out, else of nothing. */
function literal(kind: CodeKind, node: Node | null | undefined, more?: Partial<Mention>): Mention[] {
  const name = node?.type === "Literal" ? nameOf(node) : undefined;
  return name === undefined ? [] : [mention(kind, name, node!, more)];
}

const defines = { defines: true } as const;

function readKeys(program: Node): Mention[] {
  return recipeReads(program).map(({ key, node, shorthand }) =>
    mention("key", key, node, shorthand ? { form: "shorthand" } : {}),
  );
}

/**
 * A section's file: its exported constant is the section, `section("…", { … })`; constants beside it are parts.
 * Keys that sections share are what an exported function gives; the words of its first parameter's type name these.
 */
function schemaKeys(program: Node, section: string): Mention[] {
  const constants = walk(program).filter(({ type }) => type === "VariableDeclarator");
  const shapeOf = (value: Node): Node | undefined => {
    const constant = constants.find(({ id }) => value.type === "Identifier" && nameOf(id as Node) === value.name);
    const call = (constant ? constant.init : value) as Node | null;
    if (call?.type !== "CallExpression" || nameOf(call.callee as Node) !== "section") return undefined;
    return (call.arguments as Node[])[1];
  };
  const below = (parent: string, shape: Node): Mention[] =>
    properties(shape).flatMap((property) => {
      const key = `${parent}.${nameOf(property)}`;
      const inner = shapeOf(property.value as Node);
      const here = named("key", property, { ...defines, name: key });
      return [here, ...(inner ? below(key, inner) : valuesOf(key, property.value as Node))];
    });
  const exported = (program.body as Node[]).flatMap(declared)[0];
  const shape = exported && shapeOf(exported.init as Node);
  if (shape) return [mention("key", section, exported.id as Node, defines), ...below(section, shape)];
  return (program.body as Node[]).flatMap(({ declaration }) => {
    const made = declaration as Node | null | undefined;
    if (made?.type !== "FunctionDeclaration") return [];
    const given = walk(made).find(({ type }) => type === "ReturnStatement");
    const [first] = made.params as Node[];
    const sections = wordsOf((first?.typeAnnotation as Node | undefined)?.typeAnnotation as Node | undefined);
    return sections.flatMap((name) => below(name, given?.argument as Node));
  });
}

/** The constants that a statement exports. */
function declared({ declaration }: Node): Node[] {
  return ((declaration as Node | null | undefined)?.declarations ?? []) as Node[];
}

/** The words of an enumeration whose values a registry has, its default among them. */
function valuesOf(key: string, value: Node): Mention[] {
  const kind = registryKinds[key];
  if (kind === undefined) return [];
  const words = walk(value)
    .filter(({ type }) => type === "ArrayExpression")
    .flatMap((node) => node.elements as Node[]);
  return [...words, (value.arguments as Node[] | undefined)?.[1]].flatMap((word) => literal(kind, word));
}

/** An exported object whose docstring begins with the recipe key that chooses among its entries. */
function registries(program: Node): Mention[] {
  return (program.body as Node[]).flatMap((statement) => {
    const kind = registryKinds[/^`([\w.]+)`/.exec(docOf(statement))?.[1] ?? ""];
    const entries = declared(statement).flatMap(({ init }) => properties(bare(init as Node)));
    if (kind === undefined) return [];
    return entries.map((entry) => named(kind, entry, { ...defines, target: nameOf(bare(entry.value as Node)) }));
  });
}

/** Classes that extend what agents do, by name. */
function agents(nodes: Node[]): Mention[] {
  return nodes
    .filter(({ type, id }) => type === "ClassDeclaration" && id)
    .filter(({ superClass }) => ["Env", "ChatAgent"].includes(nameOf(superClass as Node) ?? ""))
    .map(({ id }) => mention("agent", nameOf(id as Node)!, id as Node, defines));
}

/** `type: z.literal("step")` in `runEvent` defines it; `type: "step"` in what is emitted and asked for uses it. */
function events(program: Node, nodes: Node[]): Mention[] {
  // Other messages have types too: only who imports the events asks for theirs.
  const asks = (program.body as Node[]).some((node) => /\bevents\.ts$/.test(nameOf(node.source as Node) ?? ""));
  const use = (value: unknown, more?: Partial<Mention>) => literal("event", value as Node, more);
  const isType = (node: Node | undefined) => bare(node)?.type === "MemberExpression" && nameOf(bare(node)) === "type";
  return nodes.flatMap((node) => {
    if (node.type === "VariableDeclarator" && nameOf(node.id as Node) === "runEvent") {
      const types = walk(node).filter((one) => one.type === "Property" && nameOf(one) === "type");
      return types.flatMap(({ value }) => use(((value as Node).arguments as Node[] | undefined)?.[0], defines));
    }
    if (node.type === "CallExpression" && nameOf(node.callee as Node) === "emit") {
      const types = properties((node.arguments as Node[])[0]).filter((property) => nameOf(property) === "type");
      return types.flatMap((property) => use(property.value));
    }
    if (!asks) return [];
    if (node.type === "TSTypeReference" && nameOf(node.typeName as Node) === "EventOf") {
      const parameters = (node.typeParameters as Node | undefined)?.params as Node[] | undefined;
      return (parameters ?? []).flatMap((parameter) => use(parameter.literal));
    }
    if (node.type === "SwitchStatement" && isType(node.discriminant as Node)) {
      return (node.cases as Node[]).flatMap(({ test }) => use(test));
    }
    return node.type === "BinaryExpression" && isType(node.left as Node) ? use(node.right) : [];
  });
}

/** Objects of these names hold metrics: of a step, an update or an eval. */
const holders = new Set(["metrics", "sums", "maxima", "means"]);

const holds = (node: unknown) => holders.has(nameOf(bare(node as Node)) ?? "");

/** Names that are put into such an object are metrics; members that are read of one, and lists of names, use them. */
function metrics(nodes: Node[]): Mention[] {
  const constants = new Map<string, Node>();
  const put = (value: Node | null | undefined): Mention[] => {
    const object = bare(value);
    if (object?.type === "LogicalExpression") return put(object.right as Node);
    if (object?.type === "Identifier") {
      const init = constants.get(object.name as string);
      // Once is enough, and a constant may be spread into itself.
      constants.delete(object.name as string);
      return put(init);
    }
    if (object?.type === "ArrayExpression")
      return (object.elements as Node[]).flatMap((name) => literal("metric", name));
    if (object?.type !== "ObjectExpression") return [];
    const spread = (object.properties as Node[]).filter(({ type }) => type === "SpreadElement");
    const own = properties(object).filter((property) => !holders.has(nameOf(property)!));
    return [
      ...own.map((property) => named("metric", property, defines)),
      ...spread.flatMap(({ argument }) => (holds(argument) ? [] : put(argument as Node))),
    ];
  };
  return nodes.flatMap((node) => {
    if (node.type === "VariableDeclarator") {
      const [name, init] = [nameOf(node.id as Node), node.init as Node | null];
      if (name !== undefined && init) constants.set(name, init);
      if (holds(node.id)) return put(init);
      const read = init && holds(init) ? properties(node.id as Node) : [];
      return read.map((property) => named("metric", property));
    }
    if (node.type === "Property" && holds(node.key)) return put(node.value as Node);
    if (node.type === "Property" && nameOf(node) === "metric") return literal("metric", node.value as Node, defines);
    const [holder, given] = node.type === "CallExpression" ? (node.arguments as Node[]) : [];
    if (holder && nameOf(node.callee as Node) === "metric") return literal("metric", holder);
    if (holder && holds(holder)) return put(given);
    const isMade = node.type === "AssignmentExpression";
    const member = isMade ? (node.left as Node) : node;
    if (member.type !== "MemberExpression" || !holds(member.object) || member.computed || holds(member)) return [];
    return [mention("metric", nameOf(member)!, member.property as Node, isMade ? defines : {})];
  });
}
