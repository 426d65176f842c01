/** What VS Code's JavaScript debugger needs to stop in an agent: bundled, source maps inline, outside the workspace. */
export function debugConfiguration([program, ...words]: string[], args: string[], cwd: string) {
  const isScript = program === "node";
  return {
    type: "node",
    request: "launch",
    name: `molt-runner ${args[0]}`,
    ...(isScript
      ? { program: words[0], args: [...words.slice(1), ...args] }
      : { runtimeExecutable: program, runtimeArgs: [...words, ...args] }),
    cwd,
    // Whoever steps through an agent takes their time.
    env: { MOLT_DEADLINE_SCALE: "100" },
    console: "integratedTerminal",
    // Of the runner itself, agents run in threads; its engines and ranks are processes that nobody wants to stop.
    autoAttachChildProcesses: !isScript,
    sourceMaps: true,
    // A replay calls its agent once: it has to wait until the breakpoints in the bundle are set.
    pauseForSourceMap: true,
    resolveSourceMapLocations: null,
    outFiles: [],
    skipFiles: ["<node_internals>/**"],
  };
}
