/** A sequence as far as its prompt is shared. */
export interface Holder {
  params: { prompt: ArrayLike<number>; cacheSalt?: string | null };
  /** Its prompt in a form that can be compared; null where it shares nothing. */
  prefix: string | null;
}

/** Which running sequences hold which prompt in the cache, so that equal prompts take its pages. */
export class PrefixIndex<T extends Holder> {
  /** Tokens that were looked for, and those found, since the start. */
  queries = 0;
  hits = 0;
  private readonly holders = new Map<string, Set<T>>();

  find({ prefix }: T): T | undefined {
    if (prefix === null) return undefined;
    for (const holder of this.holders.get(prefix) ?? []) return holder;
    return undefined;
  }

  /** `holder` has its whole prompt in the cache from now on. */
  add(holder: T): void {
    if (holder.prefix === null) return;
    const holders = this.holders.get(holder.prefix);
    if (holders) holders.add(holder);
    else this.holders.set(holder.prefix, new Set([holder]));
  }

  remove(holder: T): void {
    if (holder.prefix === null) return;
    const holders = this.holders.get(holder.prefix);
    if (holders?.delete(holder) && holders.size === 0) this.holders.delete(holder.prefix);
  }

  /** The weights may have changed: what is cached is no prefix of what comes. */
  clear(): void {
    this.holders.clear();
  }
}

/** Equal for equal prompts under one salt, and only for them. */
export function prefixKey({ prompt, cacheSalt }: Holder["params"]): string {
  const { buffer, byteOffset, byteLength } = Int32Array.from(prompt);
  return `${Buffer.from(buffer, byteOffset, byteLength).toString("latin1")}${cacheSalt ?? ""}`;
}
