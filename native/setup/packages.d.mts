/** npm, tried again where the network failed; resolves with what it printed, rejects with a SetupError. */
export function npmOnline(args: string[], cwd: string): Promise<string>;
