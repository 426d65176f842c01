/** Exit codes of the command line (DESIGN: done, run failed, recipe or arguments wrong, nothing to do, interrupted). */
export const ExitCode = { done: 0, failed: 1, usage: 2, nothing: 3, interrupted: 130 } as const;

export interface SourcePosition {
  file: string;
  /** From 1. */
  line?: number;
  /** From 1. */
  column?: number;
}

export function formatPosition({ file, line, column }: SourcePosition): string {
  return [file, line, line === undefined ? undefined : column].filter((part) => part !== undefined).join(":");
}

/** An error with an answer: what happened, where, and the nearest fix. Only the outermost command prints and exits. */
export class RunnerError extends Error {
  readonly position?: SourcePosition;
  readonly fix?: string;
  readonly exitCode: number;

  constructor(
    message: string,
    options: { position?: SourcePosition; fix?: string; exitCode?: number; cause?: unknown } = {},
  ) {
    super(message, { cause: options.cause });
    this.name = "RunnerError";
    this.position = options.position;
    this.fix = options.fix;
    this.exitCode = options.exitCode ?? ExitCode.failed;
  }

  /** One line, or two with the fix. */
  get advice(): string {
    return `${this.message}${this.fix ? `\n  fix: ${this.fix}` : ""}`;
  }

  format(): string {
    return `${this.position ? `${formatPosition(this.position)} ` : ""}${this.advice}`;
  }
}

/** The recipe or the arguments are wrong. */
export function usageError(message: string, options: { position?: SourcePosition; fix?: string } = {}): RunnerError {
  return new RunnerError(message, { ...options, exitCode: ExitCode.usage });
}

/** A file that the recipe or the arguments name is wrong. */
export function fileError(file: string, message: string, fix?: string): RunnerError {
  return usageError(message, { position: { file }, fix });
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
