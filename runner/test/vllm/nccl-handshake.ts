/** vLLM's own client code, of its install, joins our store and reads our unique id: NCCL's handshake without a GPU. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { randomBytes } from "node:crypto";
import { promisify } from "node:util";
import { serveUniqueId } from "molt-native";
import { deadlineMs } from "../../src/deadline.ts";
import { freePort } from "../../src/launchers/free-port.ts";

const seconds = 120;
/** c10d, as rank 0, has one id for 128 ranks; vLLM reads one whatever their number. */
const worldSize = 129;

/** `python` imports vllm; `script` is nccl_handshake.py. Rejects where vLLM would start NCCL with anything else. */
export async function ncclHandshake(python: string, script: string): Promise<void> {
  const [uniqueId, port] = [randomBytes(128), await freePort()];
  const stop = serveUniqueId(port, uniqueId);
  try {
    const store = { master_address: "127.0.0.1", master_port: port, rank_offset: 1, world_size: worldSize };
    const initInfo = JSON.stringify({
      ...store,
      packed: true,
      packed_buffer_size_bytes: 2 ** 24,
      packed_num_buffers: 2,
    });
    const options = { timeout: deadlineMs(seconds), killSignal: "SIGKILL" } as const;
    const join = (worker: number) => promisify(execFile)(python, [script, String(worker), initInfo], options);
    const started = await Promise.all([0, worldSize - 2].map(join));
    const said = started.map(({ stdout }) => JSON.parse(stdout.trim().split("\n").at(-1)!));
    const expected = (rank: number) => ({ world_size: worldSize, rank, unique_id: uniqueId.toString("hex") });
    assert.deepEqual(said, [expected(1), expected(worldSize - 1)]);
  } finally {
    stop();
  }
}
