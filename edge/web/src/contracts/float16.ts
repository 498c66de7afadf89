/** Half precision as its bits, IEEE 754 binary16: not every browser has Float16Array. */

const BITS = new DataView(new ArrayBuffer(8));

/** The bits of the half nearest to `value`, ties to even. */
export function toFloat16(value: number): number {
  BITS.setFloat64(0, value);
  const sign = (BITS.getUint16(0) & 0x8000) >>> 0;
  const size = Math.abs(value);
  if (Number.isNaN(value)) return sign | 0x7e00;
  if (size >= 65_520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | toEven(size * 2 ** 24);
  const exponent = Math.floor(Math.log2(size));
  // log2 may round up just below a power of two.
  const power = 2 ** exponent > size ? exponent - 1 : exponent;
  // A fraction that rounds up to 1024 carries into the exponent, as it should.
  return sign | (((power + 15) << 10) + toEven((size / 2 ** power - 1) * 1024));
}

/** The value of a half. */
export function fromFloat16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0x1f) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function toEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  return rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
}
