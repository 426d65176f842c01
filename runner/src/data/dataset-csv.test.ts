import { describe, expect, test } from "vitest";
import { readCsv } from "./dataset-csv.ts";

const read = (text: string) => readCsv(Buffer.from(text));

describe("rows", () => {
  test("begin on the line of their first cell, whatever their cells hold", () => {
    const { rows, problems } = read('q,a\r\n\r\n"x\ny",1\n\n\n"z\r\n\r\n\rw","é"\r\nlast,""\n"","a ""b"""');
    expect(problems).toEqual([]);
    expect(rows).toEqual([
      { number: 1, line: 3, value: { q: "x\ny", a: "1" } },
      { number: 2, line: 7, value: { q: "z\r\n\r\n\rw", a: "é" } },
      { number: 3, line: 10, value: { q: "last", a: "" } },
      { number: 4, line: 11, value: { q: "", a: 'a "b"' } },
    ]);
  });

  test("keep the names of odd columns: one without a name, as pandas writes its index; __proto__", () => {
    const { rows } = read(",__proto__\n0,p\n");
    expect(Object.entries(rows[0]!.value as object)).toEqual([
      ["", "0"],
      ["__proto__", "p"],
    ]);
  });
});

describe("problems", () => {
  test.each([
    ["a header that names a column twice", "q,a,q\n1,2,3\n", 1, 'the header names the column "q" twice'],
    ["a short row", 'q,a\n"x\ny",2\nz\n', 4, "not a row: it has 1 cell, the header 2 cells"],
    ["a long row", "q\n1\n1,2\n", 3, "not a row: it has 2 cells, the header 1 cell"],
    ["an open quote", 'q,a\n1,2\n\nx,"y\nz\n', 4, "not a row: a quoted cell of this row is never closed"],
    [
      "text after a quoted cell",
      'q,a\n"x\n"y,2\n',
      2,
      "not a row: a quoted cell of this row goes on after its closing quote; a quote in a cell is doubled",
    ],
    [
      "a quote within a cell",
      'q\n1\nsay "x"\n',
      3,
      "not a row: a quote in a cell without quotes; quote the cell and double the quotes in it",
    ],
  ])("%s", (_, text, line, message) => {
    const { problems } = read(text);
    expect(problems).toEqual([{ number: expect.any(Number), line, message }]);
  });

  test("of all rows are reported, those before an open quote too", () => {
    const { rows, problems } = read('q,a\n1\n2,b\n3\n4,"\n');
    expect(rows.map(({ line }) => line)).toEqual([3]);
    expect(problems.map(({ line }) => line)).toEqual([2, 4, 5]);
  });
});
