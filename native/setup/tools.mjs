// The tools that the set-up cannot install itself, all checked before any work.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { SetupError } from "./locate.mjs";

/**
 * @typedef {{
 *   name: string, version: string | null, command: string | null, needs: string, packages: Record<string, string>
 * }} Tool
 */

/** @param {string} command @param {string[]} args @param {string} [input] */
function capture(command, args, input) {
  try {
    const options = { encoding: "utf8", input, timeout: 30_000, stdio: ["pipe", "pipe", "ignore"] };
    return execFileSync(command, args, options).trim();
  } catch {
    return null;
  }
}

/** @param {string} version @param {string} least */
export function atLeast(version, least) {
  const [have, need] = [version, least].map((text) => text.split(".").map((part) => Number.parseInt(part, 10) || 0));
  const differing = need.findIndex((part, index) => part !== (have[index] ?? 0));
  return differing < 0 || (have[differing] ?? 0) > need[differing];
}

/** @returns {Tool} */
function findNode() {
  const [least, version] = ["20.18.1", process.versions.node];
  const packages = { apt: "nodejs (nodesource.com has newer ones)", dnf: "nodejs", brew: "node" };
  const found = atLeast(version, least) ? version : null;
  return { name: "Node.js", version: found, command: process.execPath, needs: `${least} or newer`, packages };
}

/** @returns {Tool} */
function findNpm() {
  const packages = { apt: "npm", dnf: "npm", brew: "node" };
  return { name: "npm", version: capture("npm", ["--version"]), command: "npm", needs: "any version", packages };
}

/** @returns {Tool} */
export function findPython() {
  const probe = "import sys, venv, ensurepip; print('%d.%d.%d' % sys.version_info[:3])";
  const minors = [14, 13, 12, 11, 10].map((minor) => `python3.${minor}`);
  const found = ["python3", ...minors, "python"]
    .map((command) => ({ command, version: capture(command, ["-c", probe]) }))
    .find(({ version }) => version !== null && atLeast(version, "3.10"));
  const packages = { apt: "python3 python3-venv", dnf: "python3", brew: "python" };
  const needs = "3.10 or newer, with the modules venv and ensurepip";
  return { name: "Python", version: found?.version ?? null, command: found?.command ?? null, needs, packages };
}

/** A compiler counts when it compiles C++20 against its own standard library. @returns {Tool} */
export function findCompiler() {
  const probe = `#include <concepts>
#include <span>
template <std::integral T> T f(T x) { return x; }
int main() { return f(0); }
`;
  const candidates = [process.env.CXX, "c++", "g++", "clang++", "g++-14", "g++-13", "g++-12", "g++-11"];
  const command = candidates
    .filter((name) => name !== undefined && name !== "")
    .find((name) => capture(name, ["-std=c++20", "-fsyntax-only", "-x", "c++", "-"], probe) !== null);
  const version = command ? (capture(command, ["-dumpfullversion", "-dumpversion"])?.split("\n")[0] ?? null) : null;
  const packages = { apt: "g++", dnf: "gcc-c++", brew: "llvm (or: xcode-select --install)" };
  return { name: "C++20 compiler", version, command: command ?? null, needs: "g++ 11 or newer, or clang", packages };
}

/** @param {{ native: boolean }} options @returns {Tool[]} */
export function findTools({ native }) {
  return native ? [findNode(), findNpm(), findPython(), findCompiler()] : [findNode(), findNpm()];
}

/** The package managers to name: this system's, or all where it is not known. */
function packageManagers() {
  const install = { apt: "sudo apt-get install -y", dnf: "sudo dnf install -y", brew: "brew install" };
  if (process.platform === "darwin") return { brew: install.brew };
  let release = "";
  try {
    release = readFileSync("/etc/os-release", "utf8");
  } catch {
    return install;
  }
  if (/^ID(_LIKE)?=.*(debian|ubuntu)/m.test(release)) return { apt: install.apt };
  if (/^ID(_LIKE)?=.*(fedora|rhel|centos)/m.test(release)) return { dnf: install.dnf };
  return install;
}

/** Throws one error that names every missing tool with its fix. @param {Tool[]} tools */
export function requireTools(tools) {
  const missing = tools.filter((tool) => tool.version === null);
  if (missing.length === 0) return;
  const what = missing.map((tool) => `${tool.name} (${tool.needs})`).join(", ");
  const fixes = Object.entries(packageManagers()).map(
    ([manager, install]) => `${install} ${missing.map((tool) => tool.packages[manager]).join(" ")}`,
  );
  throw new SetupError(`missing: ${what}`, fixes.join("   or: "));
}
