import { mkdir, rm } from "node:fs/promises";
import { join, resolve } from "node:path";
import { copyModelFiles } from "../../data/model-folder.ts";
import { withDeadline } from "../../deadline.ts";
import type { EngineClient } from "../client.ts";
import type { Canary } from "./canary.ts";
import { allOf, type Delivery, type SyncRanks, type Transport } from "./transport.ts";

export interface DirectoryOptions {
  client: EngineClient;
  ranks: Pick<SyncRanks, "all">;
  canary: Canary;
  /** The policy's, for what lies beside its weights. */
  model: string;
  /** Where versions are laid out; every engine must see it by this path. */
  directory: string;
}

/** A folder of safetensors a version, from which vLLM reloads: it has a path of its own, and goes after the sync. */
export class DirectoryTransport implements Transport {
  private written: { version: number; path: string; checksum: string } | null = null;

  constructor(private readonly options: DirectoryOptions) {}

  async send({ engines, version, call }: Delivery): Promise<string> {
    const { client } = this.options;
    if (this.written?.version !== version) {
      await withDeadline(this.write(version), call().timeoutSeconds, "the trainer to write its weights");
    }
    const { path, checksum } = this.written!;
    const reload = async (url: string) => {
      // One that began with dummy weights reads no others by itself.
      await client.collectiveRpc(url, "update_config", { overrides: { load_config: { load_format: "auto" } } }, call());
      await client.collectiveRpc(url, "reload_weights", { weights_path: path }, call());
      await client.setWeightVersion(url, version, call());
      await client.expectVersion(url, version, call());
    };
    await allOf(engines.map(({ url }) => reload(url)));
    return checksum;
  }

  verify(delivery: Delivery): Promise<void> {
    return this.options.canary.check(delivery);
  }

  async settle(): Promise<void> {
    const { written } = this;
    this.written = null;
    if (written) await rm(written.path, { recursive: true, force: true });
  }

  private async write(version: number): Promise<void> {
    const { ranks, model, directory } = this.options;
    await this.settle();
    const path = resolve(join(directory, `version-${version}`));
    // What a killed run left there.
    await rm(path, { recursive: true, force: true });
    await mkdir(path, { recursive: true });
    copyModelFiles(model, path);
    await ranks.all("exportWeights", { directory: path });
    const [sum] = await ranks.all("checksum", {});
    this.written = { version, path, checksum: sum!.checksum };
  }
}
