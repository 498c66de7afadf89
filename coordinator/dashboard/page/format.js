// Figures as people read them. Memory is in MB of 2^20 bytes, as systems report it; traffic in MB of 10^6.

export const MIB = 2 ** 20;

export const memory = bytes => (bytes ? `${(bytes / MIB).toFixed(bytes < 100 * MIB ? 1 : 0)} MB` : "");
export const traffic = bytes =>
  bytes >= 1e12 ? `${(bytes / 1e12).toFixed(2)} TB` : bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e3).toFixed(1)} kB`;
export const number = (value, digits = 4) => (value === null || value === undefined ? "" : value.toFixed(digits));
export const whole = value => value.toLocaleString("en");
export const milliseconds = value => (value === null || value === undefined ? "" : `${value < 10 ? value.toFixed(2) : value.toFixed(1)} ms`);

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

const two = value => String(value).padStart(2, "0");

export function clock(at) {
  if (!at) return "";
  const time = new Date(at * 1000);
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
}

export function moment(at) {
  if (!at) return "";
  const time = new Date(at * 1000);
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${clock(at)}`;
}

export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;
