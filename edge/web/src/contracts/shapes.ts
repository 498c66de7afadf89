/**
 * What a field of a wire struct may hold: read strictly from what a parser gave, written in the struct's order.
 *
 * As on the Python side: unknown fields are ignored, missing ones take their default, every other difference is a
 * MessageRejected that says where.
 */

import { MessageRejected } from "./errors";
import { Float } from "./msgpackReader";
import type { MsgpackWriter } from "./msgpackWriter";

export interface Shape<T> {
  /** `value` as a parser gave it (msgpack or JSON), as a T; MessageRejected when it is none. */
  read(value: unknown, path: string): T;
  write(writer: MsgpackWriter, value: T): void;
}

/** A field that may be missing, and what it is then. */
export interface Defaulted<T> {
  readonly shape: Shape<T>;
  readonly fallback: T;
}

export type Field<T> = Shape<T> | Defaulted<T>;

export interface Struct<T> extends Shape<T> {
  readonly name: string;
  readonly fields: readonly string[];
  /** A whole struct from some of its fields; the others have their defaults. TypeError when one has none. */
  make(fields: Partial<T>): T;
}

export function defaulted<T>(shape: Shape<T>, fallback: T): Defaulted<T> {
  return { shape, fallback };
}

export const text: Shape<string> = {
  read: (value, path) => (typeof value === "string" ? value : reject("text", value, path)),
  write: (writer, value) => writer.text(value),
};

export const flag: Shape<boolean> = {
  read: (value, path) => (typeof value === "boolean" ? value : reject("true or false", value, path)),
  write: (writer, value) => writer.flag(value),
};

export const bytes: Shape<Uint8Array> = {
  read: (value, path) => (value instanceof Uint8Array ? value : reject("bytes", value, path)),
  write: (writer, value) => writer.binary(value),
};

/** Any value, kept as it came; JSON only. */
export const anything: Shape<unknown> = {
  read: (value) => value,
  write: () => {
    throw new TypeError("a field of any value has no msgpack here");
  },
};

export const integer: Shape<number> = integerWithin(-Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER);

export function integerWithin(least: number, most: number): Shape<number> {
  return {
    read: (value, path) => {
      if (!Number.isSafeInteger(value)) return reject("a whole number within 2^53", value, path);
      return within(value as number, least, most, path);
    },
    write: (writer, value) => {
      if (!Number.isSafeInteger(value)) throw new TypeError(`${value} is not a whole number within 2^53`);
      writer.integer(value);
    },
  };
}

/** 64 bits, where a number does not do: seeds. */
export const integer64: Shape<bigint> = {
  read: (value, path) => {
    if (typeof value === "bigint") return value;
    return Number.isSafeInteger(value) ? BigInt(value as number) : reject("a whole number", value, path);
  },
  write: (writer, value) => writer.integer(value),
};

export const float: Shape<number> = {
  read: readFloat,
  write: (writer, value) => writer.float(value),
};

export function floatWithin(least: number, most: number): Shape<number> {
  return { read: (value, path) => within(readFloat(value, path), least, most, path), write: float.write };
}

export function oneOf<const T extends string>(...names: readonly T[]): Shape<T> {
  return {
    read: (value, path) => {
      const found = names.find((name) => name === value);
      return found ?? reject(`one of ${names.join(", ")}`, value, path);
    },
    write: (writer, value) => writer.text(value),
  };
}

export function optional<T>(shape: Shape<T>): Shape<T | null> {
  return {
    read: (value, path) => (value === null ? null : shape.read(value, path)),
    write: (writer, value) => (value === null ? writer.none() : shape.write(writer, value)),
  };
}

export function list<T>(shape: Shape<T>): Shape<readonly T[]> {
  return {
    read: (value, path) => {
      if (!Array.isArray(value)) return reject("a list", value, path);
      return value.map((entry, index) => shape.read(entry, `${path}[${index}]`));
    },
    write: (writer, value) => {
      writer.list(value.length);
      for (const entry of value) shape.write(writer, entry);
    },
  };
}

/** Names to values. The result has no prototype, so a name finds nothing that was not sent; written in rising order. */
export function dict<T>(shape: Shape<T>): Shape<Readonly<Record<string, T>>> {
  return {
    read: (value, path) => {
      const entries = Object.create(null) as Record<string, T>;
      for (const [key, entry] of Object.entries(asMap(value, path))) entries[key] = shape.read(entry, `${path}.${key}`);
      return entries;
    },
    write: (writer, value) => {
      const keys = Object.keys(value).sort(compareText);
      writer.map(keys.length);
      for (const key of keys) {
        writer.text(key);
        shape.write(writer, value[key] as T);
      }
    },
  };
}

/** A struct whose fields travel in the order given here. */
export function struct<T>(name: string, fields: { readonly [K in keyof T]-?: Field<T[K]> }): Struct<T> {
  const parts = Object.entries<Field<unknown>>(fields).map(([key, field]) => ({
    key,
    shape: "shape" in field ? field.shape : field,
    isRequired: !("shape" in field),
    fallback: "shape" in field ? field.fallback : undefined,
  }));
  return {
    name,
    fields: parts.map((part) => part.key),
    read: (value, path) => {
      const entries = asMap(value, path);
      const result: Record<string, unknown> = {};
      for (const part of parts) {
        if (Object.hasOwn(entries, part.key)) {
          result[part.key] = part.shape.read(entries[part.key], `${path}.${part.key}`);
        } else if (part.isRequired) {
          throw new MessageRejected(`${name} has no field '${part.key}' at ${path}`);
        } else result[part.key] = part.fallback;
      }
      return result as T;
    },
    write: (writer, value) => {
      writer.map(parts.length);
      for (const part of parts) {
        writer.text(part.key);
        part.shape.write(writer, (value as Record<string, unknown>)[part.key]);
      }
    },
    make: (given) => {
      const result: Record<string, unknown> = {};
      for (const part of parts) {
        const value = (given as Record<string, unknown>)[part.key];
        if (value === undefined && part.isRequired) throw new TypeError(`${name} needs a value for '${part.key}'`);
        result[part.key] = value === undefined ? part.fallback : value;
      }
      return result as T;
    },
  };
}

/** Order by code points, as Python's; `<` on strings of JavaScript orders by UTF-16. */
export function compareText(a: string, b: string): number {
  const left = [...a];
  const right = [...b];
  for (let i = 0; i < left.length && i < right.length; i++) {
    const difference = (left[i]?.codePointAt(0) ?? 0) - (right[i]?.codePointAt(0) ?? 0);
    if (difference !== 0) return difference;
  }
  return left.length - right.length;
}

function readFloat(value: unknown, path: string): number {
  if (value instanceof Float) return value.value;
  if (typeof value === "number" || typeof value === "bigint") return Number(value);
  return reject("a number", value, path);
}

function within(value: number, least: number, most: number, path: string): number {
  if (value >= least && value <= most) return value;
  throw new MessageRejected(`${path} is ${value}, ${least} to ${most} expected`);
}

function asMap(value: unknown, path: string): Readonly<Record<string, unknown>> {
  const isMap =
    typeof value === "object" &&
    value !== null &&
    !Array.isArray(value) &&
    !(value instanceof Uint8Array) &&
    !(value instanceof Float);
  return isMap ? (value as Record<string, unknown>) : reject("a map", value, path);
}

function reject(expected: string, value: unknown, path: string): never {
  throw new MessageRejected(`${path} is ${describe(value)}, ${expected} expected`);
}

function describe(value: unknown): string {
  if (typeof value === "string") return `the text ${JSON.stringify(value.slice(0, 40))}`;
  if (value instanceof Float) return `the float ${value.value}`;
  if (value instanceof Uint8Array) return `${value.length} bytes`;
  if (Array.isArray(value)) return "a list";
  if (typeof value === "object" && value !== null) return "a map";
  return String(value);
}
