import { once } from "node:events";
import { createWriteStream, mkdirSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import type { Fail, Sink } from "./index.ts";

/** Event files as TensorBoard reads them: TFRecords of `Event` messages (tensorboard/compat/proto/event.proto). */
export async function openTensorBoard(directory: string, fail: Fail): Promise<Sink> {
  mkdirSync(directory, { recursive: true });
  const startedAt = Date.now() / 1000;
  const name = `events.out.tfevents.${Math.floor(startedAt)}.${hostname()}.${process.pid}.0`;
  const file = createWriteStream(join(directory, name));
  await once(file, "open");
  file.on("error", fail);
  const write = (...event: Parameters<typeof eventRecord>) => file.write(eventRecord(...event));
  write(startedAt, 0, field(3, Buffer.from("brain.Event:2")));
  return {
    take({ time, ...event }, scalars) {
      // SessionLog START: what an earlier file says of this step and later ones is superseded.
      if (event.type === "resumed") write(time, event.fromStep + 1, field(7, Buffer.from([8, 1])));
      if (scalars) write(time, scalars.step, summary(scalars.values));
    },
    close: () => new Promise((resolve) => file.end(() => resolve(null))),
  };
}

/** Length, its masked CRC-32C, an `Event`, its masked CRC-32C. `time` in seconds since the epoch. */
export function eventRecord(time: number, step: number, what: Buffer): Buffer {
  const wallTime = Buffer.alloc(9, 0x09);
  wallTime.writeDoubleLE(time, 1);
  const event = Buffer.concat([wallTime, Buffer.from([0x10, ...varint(step)]), what]);
  const length = Buffer.alloc(8);
  length.writeUInt32LE(event.length);
  return Buffer.concat([length, maskedCrc(length), event, maskedCrc(event)]);
}

export function summary(scalars: Record<string, number>): Buffer {
  const values = Object.entries(scalars).map(([tag, value]) => {
    const simpleValue = Buffer.alloc(5, 0x15);
    simpleValue.writeFloatLE(value, 1);
    return field(1, Buffer.concat([field(1, Buffer.from(tag)), simpleValue]));
  });
  return field(5, Buffer.concat(values));
}

/** Length-delimited. */
export function field(number: number, value: Buffer): Buffer {
  return Buffer.concat([Buffer.from([number * 8 + 2, ...varint(value.length)]), value]);
}

function varint(value: number): number[] {
  return value < 128 ? [value] : [(value % 128) + 128, ...varint(Math.floor(value / 128))];
}

function maskedCrc(data: Buffer): Buffer {
  let crc = ~0;
  for (const byte of data) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0x82f63b78 : 0);
  }
  crc = ~crc >>> 0;
  const masked = Buffer.alloc(4);
  masked.writeUInt32LE((((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0);
  return masked;
}
