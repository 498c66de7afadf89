/** Numbers as people read them. */

/** A space that keeps a number and its unit on one line. */
const SPACE = "\u00a0";

const UNITS = ["bytes", "kB", "MB", "GB", "TB"];

/** Decimal units, three significant digits at most: `0 bytes`, `14.2 MB`, `167 MB`. */
export function bytesText(bytes: number): string {
  let value = Math.max(0, bytes);
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  if (unit === 0) return Math.round(value) === 1 ? `1${SPACE}byte` : `${Math.round(value)}${SPACE}bytes`;
  const digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${trimmed(value.toFixed(digits))}${SPACE}${UNITS[unit]}`;
}

/** Memory as budgets count it and the coordinator tells it, in MB of 2^20 bytes: `512 MB`, `2,048 MB`. */
export function memoryText(bytes: number): string {
  const megabytes = bytes / 2 ** 20;
  const text = megabytes < 9.95 ? trimmed(megabytes.toFixed(1)) : Math.round(megabytes).toLocaleString("en");
  return `${text}${SPACE}MB`;
}

/** `0.42 ms`, `320 ms`, `1.4 s`, `3 min 20 s`, `2 h 5 min`. */
export function durationText(ms: number): string {
  if (ms < 9.95) return `${trimmed(ms.toPrecision(2))}${SPACE}ms`;
  if (ms < 999.5) return `${Math.round(ms)}${SPACE}ms`;
  if (ms < 59_950) return `${trimmed((ms / 1000).toFixed(ms < 9_950 ? 1 : 0))}${SPACE}s`;
  const seconds = Math.round(ms / 1000);
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60), seconds % 60];
  if (hours > 0) return minutes > 0 ? kept(`${hours} h ${minutes} min`) : kept(`${hours} h`);
  return rest > 0 ? kept(`${minutes} min ${rest} s`) : kept(`${minutes} min`);
}

/** Four significant digits, and a plain word for what is no number. */
export function lossText(loss: number): string {
  if (!Number.isFinite(loss)) return "not finite";
  return Math.abs(loss) >= 1000 || (loss !== 0 && Math.abs(loss) < 0.001) ? loss.toExponential(2) : loss.toPrecision(4);
}

export function countText(count: number, one: string, many = `${one}s`): string {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

/** `14:05:09`, in local time. */
export function clockText(at: number): string {
  return new Date(at).toLocaleTimeString("en-GB");
}

/** `text` with the space between each number and its unit unbroken. */
export function kept(text: string): string {
  return text.replace(/(\d) (?=%|°|bytes?\b|[kMGT]B\b|ms\b|s\b|min\b|h\b)/g, `$1${SPACE}`);
}

function trimmed(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}
