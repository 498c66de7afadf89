/** Whether an error says that memory could not be had. */

export const OUT_OF_MEMORY = "out-of-memory";

const WORDS = [
  "bad_alloc",
  "bad allocation",
  "failed to allocate",
  "cannot allocate",
  "out of memory",
  "allocation failed",
  "(oom)",
  "cannot enlarge memory",
  "memory.grow",
];

export function isOutOfMemory(error: unknown): boolean {
  const told = `${error instanceof Error ? `${error.name}: ${error.message}` : error}`.toLowerCase();
  return WORDS.some((word) => told.includes(word));
}
