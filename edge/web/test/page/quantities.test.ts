import { expect, test } from "vitest";
import { bytesText, countText, durationText, kept, lossText, memoryText } from "../../src/page/quantities";

const plain = (text: string) => text.replaceAll("\u00a0", " ");

test.each([
  [0, "0 bytes"],
  [1, "1 byte"],
  [999, "999 bytes"],
  [1000, "1 kB"],
  [14_200_000, "14.2 MB"],
  [167_000_000, "167 MB"],
  [999_600_000, "1 GB"],
  [-5, "0 bytes"],
])("bytesText of %d", (bytes, text) => {
  expect(plain(bytesText(bytes))).toBe(text);
});

test.each([
  [1024 * 2 ** 20, "1,024 MB"],
  [512 * 2 ** 20, "512 MB"],
  [83_000_000, "79 MB"],
  [2_500_000, "2.4 MB"],
  [0, "0 MB"],
])("memoryText of %d", (bytes, text) => {
  expect(plain(memoryText(bytes))).toBe(text);
});

test.each([
  [0, "0 ms"],
  [0.416, "0.42 ms"],
  [3.14, "3.1 ms"],
  [9.97, "10 ms"],
  [12, "12 ms"],
  [999.7, "1 s"],
  [1_440, "1.4 s"],
  [12_400, "12 s"],
  [60_000, "1 min"],
  [200_000, "3 min 20 s"],
  [7_500_000, "2 h 5 min"],
])("durationText of %d", (ms, text) => {
  expect(plain(durationText(ms))).toBe(text);
});

test("lossText keeps four digits and says what is no number", () => {
  expect(lossText(0.35881)).toBe("0.3588");
  expect(lossText(0.00001234)).toBe("1.23e-5");
  expect(lossText(Number.NaN)).toBe("not finite");
});

test("countText has the plural that is given", () => {
  expect(countText(1, "class", "classes")).toBe("1 class");
  expect(countText(1200, "class", "classes")).toBe("1,200 classes");
});

test("kept binds units to numbers and nothing else", () => {
  expect(kept("Battery at 18 %, goes on at 23 % in 5 min, 3 cats")).toBe(
    "Battery at 18\u00a0%, goes on at 23\u00a0% in 5\u00a0min, 3 cats",
  );
});
