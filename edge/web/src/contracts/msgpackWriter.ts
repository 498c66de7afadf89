/**
 * Msgpack out, byte for byte as the Python side writes it: whole numbers in their shortest form, floats as float64.
 * (`@msgpack/msgpack` writes the float 3.0 as the integer 3 and has no switch for one value.)
 */

const TEXT = new TextEncoder();

/** Writes values one after the other. */
export class MsgpackWriter {
  private bytes = new Uint8Array(1024);
  private view = new DataView(this.bytes.buffer);
  private at = 0;

  /** A copy of what was written. */
  finish(): Uint8Array<ArrayBuffer> {
    return this.bytes.slice(0, this.at);
  }

  none(): void {
    this.byte(0xc0);
  }

  flag(value: boolean): void {
    this.byte(value ? 0xc3 : 0xc2);
  }

  float(value: number): void {
    this.byte(0xcb);
    this.grow(8).setFloat64(this.at - 8, value);
  }

  /** Whole numbers from -2^63 to 2^64 - 1. */
  integer(value: number | bigint): void {
    const number = Number(value);
    if (number >= 0) {
      if (number < 0x80) this.byte(number);
      else if (number < 2 ** 32) this.sized(number, 0xcc, 0xcd, 0xce);
      else {
        this.byte(0xcf);
        this.grow(8).setBigUint64(this.at - 8, BigInt(value));
      }
    } else if (number >= -0x20) this.byte(number + 0x100);
    else if (number >= -0x80) {
      this.byte(0xd0);
      this.grow(1).setInt8(this.at - 1, number);
    } else if (number >= -0x8000) {
      this.byte(0xd1);
      this.grow(2).setInt16(this.at - 2, number);
    } else if (number >= -(2 ** 31)) {
      this.byte(0xd2);
      this.grow(4).setInt32(this.at - 4, number);
    } else {
      this.byte(0xd3);
      this.grow(8).setBigInt64(this.at - 8, BigInt(value));
    }
  }

  text(value: string): void {
    const bytes = TEXT.encode(value);
    if (bytes.length < 32) this.byte(0xa0 | bytes.length);
    else this.sized(bytes.length, 0xd9, 0xda, 0xdb);
    this.raw(bytes);
  }

  binary(value: Uint8Array): void {
    this.sized(value.length, 0xc4, 0xc5, 0xc6);
    this.raw(value);
  }

  /** The head of a list; its entries follow. */
  list(size: number): void {
    if (size < 16) this.byte(0x90 | size);
    else this.sized(size, undefined, 0xdc, 0xdd);
  }

  /** The head of a map; keys and values follow. */
  map(size: number): void {
    if (size < 16) this.byte(0x80 | size);
    else this.sized(size, undefined, 0xde, 0xdf);
  }

  /** Bytes that are msgpack already. */
  raw(value: Uint8Array): void {
    this.grow(value.length);
    this.bytes.set(value, this.at - value.length);
  }

  private sized(size: number, one: number | undefined, two: number, four: number): void {
    if (one !== undefined && size < 0x100) {
      this.byte(one);
      this.byte(size);
    } else if (size < 0x10000) {
      this.byte(two);
      this.grow(2).setUint16(this.at - 2, size);
    } else {
      this.byte(four);
      this.grow(4).setUint32(this.at - 4, size);
    }
  }

  private byte(value: number): void {
    this.grow(1).setUint8(this.at - 1, value);
  }

  /** Room for `size` more bytes, which end at `at`; the view is another one when it had to be made. */
  private grow(size: number): DataView {
    this.at += size;
    if (this.at > this.bytes.length) {
      const larger = new Uint8Array(Math.max(this.at, this.bytes.length * 2));
      larger.set(this.bytes);
      this.bytes = larger;
      this.view = new DataView(larger.buffer);
    }
    return this.view;
  }
}
