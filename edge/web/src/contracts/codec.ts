/** Structs to bytes and back: size first, then schema, then content; a parser's own exceptions end here. */

import { ApportionError, MessageRejected, UnsupportedVersion } from "./errors";
import { MsgpackReader } from "./msgpackReader";
import { MsgpackWriter } from "./msgpackWriter";
import type { Shape, Struct } from "./shapes";

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Msgpack of a struct: its fields in their order, dictionaries sorted, as the Python side writes it. */
export function encodeMsgpack<T>(shape: Shape<T>, value: T): Uint8Array<ArrayBuffer> {
  const writer = new MsgpackWriter();
  shape.write(writer, value);
  return writer.finish();
}

/** A `kind` from msgpack bytes. Byte strings are views into `data`. MessageRejected: over `limit` bytes or malformed. */
export function decodeMsgpack<T>(data: Uint8Array, kind: Struct<T>, limit: number): T {
  return reading(data, kind, limit, () => {
    const reader = new MsgpackReader(data);
    const value = reader.value();
    reader.end();
    return kind.read(value, "$");
  });
}

/** A `kind` from JSON bytes. UnsupportedVersion: `schema` is given, and is not the text in the field of that name. */
export function decodeJson<T>(data: Uint8Array, kind: Struct<T>, limit: number, schema?: string): T {
  return reading(data, kind, limit, () => {
    const value: unknown = JSON.parse(UTF8.decode(data));
    if (schema !== undefined) checkSchema(value, kind.name, schema);
    return kind.read(value, "$");
  });
}

/** JSON of a flat struct, fields in the struct's order, no whitespace. */
export function encodeJson<T>(kind: Struct<T>, value: T): Uint8Array<ArrayBuffer> {
  const given = value as Record<string, unknown>;
  return new TextEncoder().encode(JSON.stringify(Object.fromEntries(kind.fields.map((name) => [name, given[name]]))));
}

/** Nothing when `data` is at most `limit` bytes, MessageRejected when it is longer. */
export function checkSize(data: Uint8Array, limit: number, what: string): void {
  if (data.length > limit) {
    throw new MessageRejected(`${what} of ${data.length} bytes is over the limit of ${limit}; it was not parsed`);
  }
}

function reading<T>(data: Uint8Array, kind: Struct<T>, limit: number, read: () => T): T {
  checkSize(data, limit, kind.name);
  try {
    return read();
  } catch (error) {
    if (error instanceof UnsupportedVersion) throw error;
    const why = error instanceof ApportionError || error instanceof SyntaxError ? error.message : String(error);
    throw new MessageRejected(`${kind.name} of ${data.length} bytes cannot be read: ${why}; send it again`, {
      cause: error,
    });
  }
}

function checkSchema(value: unknown, what: string, schema: string): void {
  const isMap = typeof value === "object" && value !== null && !Array.isArray(value);
  if (!isMap) throw new MessageRejected("a map expected");
  const found: unknown = Object.hasOwn(value, "schema") ? (value as Record<string, unknown>).schema : "";
  if (typeof found !== "string") throw new MessageRejected("$.schema is not text");
  if (found !== schema) {
    throw new UnsupportedVersion(`${what} has schema '${found.slice(0, 80)}', this release reads '${schema}'; upgrade`);
  }
}
