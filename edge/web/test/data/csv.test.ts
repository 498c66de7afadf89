import { describe, expect, it } from "vitest";
import { readCsv } from "../../src/data/csv";

describe("a table", () => {
  it("takes labels from the column called label, wherever it is", () => {
    const data = readCsv("a,label,b\r\n1,cat,2.5\r\n-3e2,dog,.5\r\n\r\n", "mine.csv");
    expect([...data.x.values]).toEqual([1, 2.5, -300, 0.5]);
    expect(data.x.shape).toEqual([2, 2]);
    expect(data.y.values).toEqual(["cat", "dog"]);
  });

  it("takes labels from the last column without one of that name, as numbers where all are whole", () => {
    const data = readCsv('a,"the class"\n1,"7"\n2,-1\n', "mine.csv");
    expect([...data.y.values]).toEqual([7n, -1n]);
    expect(data.x.values).toBeInstanceOf(Float64Array);
  });

  it.each([
    ["a,label\n1,x\n1,2,3\n", "row 3 cannot be read (3 columns, the header has 2)"],
    ["a,label\n1,x\nfour,y\n", 'row 3 cannot be read ("four" is no number)'],
    ["a,label\n,x\n", 'row 2 cannot be read ("" is no number)'],
    ["a,label\n", "no rows below the header"],
    ['a,label\n"1,x\n', "row 2 cannot be read"],
  ])("refuses %j", (text, message) => {
    expect(() => readCsv(text, "mine.csv")).toThrow(`mine.csv: ${message}`);
  });
});
