/** What this browser lacks, in words. Asked once, before anything is promised. */

/** A function that uses one SIMD instruction. */
const SIMD_MODULE = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
]);

export function missingFeatures(): string[] {
  const missing: string[] = [];
  if (globalThis.crypto?.subtle === undefined) missing.push("keys, which need an https address");
  if (globalThis.indexedDB === undefined) missing.push("a database");
  if (globalThis.Worker === undefined) missing.push("workers");
  if (globalThis.WebAssembly === undefined || !WebAssembly.validate(SIMD_MODULE)) missing.push("WebAssembly with SIMD");
  return missing;
}
