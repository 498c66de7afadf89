/** Examples in a CSV table: a header, one column of labels, all others numbers. */

import Papa from "papaparse";
import { DataError } from "../contracts/errors";
import type { LocalData } from "./examples";

const WHOLE = /^\s*-?\d+\s*$/;
const NUMBER = /^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$/;

/**
 * The table's rows; labels are those of the column called `label`, else of the last one, and whole numbers where all
 * of them are.
 *
 * @throws DataError with the row that cannot be read, counted from 1 with the header.
 */
export function readCsv(text: string, where: string): LocalData {
  const parsed = Papa.parse<string[]>(text.replace(/^\uFEFF/, ""), { header: false, delimiter: "," });
  const fail = (row: number, reason: string) =>
    new DataError(`${where}: row ${row} cannot be read (${reason}); replace the file`);
  const problem = parsed.errors[0];
  if (problem !== undefined) throw fail((problem.row ?? 0) + 1, problem.message);
  const [header = [], ...rows] = parsed.data;
  const named = header.indexOf("label");
  const column = named < 0 ? header.length - 1 : named;
  const values: number[] = [];
  const labels: string[] = [];
  rows.forEach((row, index) => {
    if (row.length === 1 && row[0] === "") return; // an empty line
    if (row.length !== header.length) {
      throw fail(index + 2, `${row.length} columns, the header has ${header.length}`);
    }
    row.forEach((cell, place) => {
      if (place === column) labels.push(cell);
      else if (NUMBER.test(cell)) values.push(Number(cell));
      else throw fail(index + 2, `${JSON.stringify(cell)} is no number`);
    });
  });
  if (labels.length === 0) throw new DataError(`${where}: no rows below the header; give at least one`);
  return {
    where,
    x: { values: Float64Array.from(values), shape: [labels.length, header.length - 1] },
    y: {
      values: labels.every((label) => WHOLE.test(label)) ? BigInt64Array.from(labels, BigInt) : labels,
      shape: [labels.length],
    },
  };
}
