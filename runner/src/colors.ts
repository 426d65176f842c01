import pc from "picocolors";

/** Colours where `stream` is a terminal that takes them; plain text in pipes, files and CI. */
export function colorsFor(stream: { isTTY?: boolean }): ReturnType<typeof pc.createColors> {
  return pc.createColors(pc.isColorSupported && stream.isTTY === true);
}
