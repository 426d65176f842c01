/**
 * hyparquet believes every count in a file, and a false one fills the memory or takes hours. This refuses, before it
 * decodes, counts that contradict each other and runs longer than their page. Source: the format's README and
 * Encodings.md.
 */
import { type ColumnMetaData, type Compressors, type FileMetaData, type PageHeader, parquetSchema } from "hyparquet";
import { parquetHeader } from "hyparquet/src/column.js";
import { decompressPage } from "hyparquet/src/datapage.js";
import { getMaxDefinitionLevel, getMaxRepetitionLevel, getTreePath, isFlatColumn } from "hyparquet/src/schema.js";
import { readVarInt } from "hyparquet/src/thrift.js";

interface Column {
  meta: ColumnMetaData;
  compressors: Compressors;
  /** The most, of repetition and definition. */
  levels: number[];
}

/** Throws where counts of file, row groups, columns, pages and runs disagree. */
export function checkCounts(bytes: Buffer, metadata: FileMetaData, compressors: Compressors): void {
  const tree = parquetSchema(metadata);
  for (const { columns, num_rows: rows } of metadata.row_groups) {
    for (const { meta_data: meta } of columns) {
      if (!meta) continue; // in another file: hyparquet refuses it
      const path = getTreePath(tree, meta.path_in_schema);
      // In a nested column even an empty row has a value.
      const fits = isFlatColumn(path) ? meta.num_values === rows : meta.num_values >= rows;
      const levels = [getMaxRepetitionLevel(path), getMaxDefinitionLevel(path)];
      const values = checkPages(bytes, { meta, compressors, levels });
      if (!fits || BigInt(values) !== meta.num_values) {
        const counts = `${meta.num_values} values by its footer, ${values} by its pages, in ${rows} rows`;
        throw new Error(`column ${meta.path_in_schema.join(".")} has ${counts}`);
      }
    }
  }
}

function checkPages(bytes: Buffer, column: Column): number {
  const { dictionary_page_offset, data_page_offset, total_compressed_size, num_values } = column.meta;
  const start = bytes.byteOffset + Number(dictionary_page_offset || data_page_offset);
  const reader = { view: new DataView(bytes.buffer, start, Number(total_compressed_size)), offset: 0 };
  let values = 0;
  while (values < num_values && reader.offset < reader.view.byteLength - 1) {
    const header = parquetHeader(reader);
    const page = new Uint8Array(bytes.buffer, start + reader.offset, header.compressed_page_size);
    reader.offset += header.compressed_page_size;
    values += checkPage(page, header, column);
  }
  return values;
}

function checkPage(page: Uint8Array, header: PageHeader, { meta, compressors, levels }: Column): number {
  const { data_page_header: first, data_page_header_v2: second, uncompressed_page_size: size } = header;
  const { num_values: count = 0, encoding = "PLAIN" } = second ?? first ?? {};
  const levelBytes = second && [second.repetition_levels_byte_length, second.definition_levels_byte_length];
  const [repetition, definition] = (levelBytes ?? [0, 0]) as [number, number];
  const counts = [count, repetition, definition, size, header.compressed_page_size];
  if (!counts.every((number) => Number.isInteger(number) && number >= 0) || count > meta.num_values) {
    throw new Error(`a page has false counts: ${counts.map(Number).join(", ")}`);
  }
  if (!first && !second) return 0; // A dictionary: read value by value, to the page's end.
  const end = repetition + definition;
  const isPacked = second?.is_compressed !== false && size > end;
  let values = page.subarray(end);
  if (isPacked) values = decompressPage(values, size - end, meta.codec, compressors);
  for (const [index, level] of levels.entries()) {
    if (level === 0) continue;
    let runs = page.subarray(index * repetition);
    if (!second) [runs, values] = takeRuns(values);
    checkRuns(runs, 32 - Math.clz32(level), count);
  }
  if (!/RLE|_DICTIONARY/.test(encoding) || values.length === 0) return count;
  // Booleans have their runs' length before them, dictionary indices their width in bits.
  const areBooleans = second ? encoding === "RLE" : meta.type === "BOOLEAN";
  if (areBooleans) checkRuns(takeRuns(values)[0], 1, count);
  else checkRuns(values.subarray(1), values[0]!, count);
  return count;
}

/** Runs preceded by their length, and what follows. They are read on past it while values are left. */
function takeRuns(bytes: Uint8Array): [Uint8Array, Uint8Array] {
  if (bytes.length < 4) return [new Uint8Array(), new Uint8Array()];
  const end = 4 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  return [bytes.subarray(4), bytes.subarray(end)];
}

/** At most `count` values of `width` bits. The last packed group of 8 may be padded. */
function checkRuns(bytes: Uint8Array, width: number, count: number): void {
  const reader = { view: new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), offset: 0 };
  for (let left = count; left > 0 && reader.offset < bytes.length; ) {
    const head = readVarInt(reader);
    const isPacked = (head & 1) === 1;
    const values = (head >>> 1) * (isPacked ? 8 : 1);
    // Packed values are there or not: only at width 0 may there be any number.
    if (isPacked && width === 0 ? values >= left + 8 : !isPacked && values > left) {
      throw new Error(`a run of ${values} values where ${left} are left`);
    }
    reader.offset += isPacked ? (values / 8) * width : Math.ceil(width / 8);
    left -= values;
  }
}
