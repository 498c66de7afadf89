/** What a device is and can afford, as it reports itself. null and empty mean: not known. */

import {
  defaulted,
  dict,
  flag,
  float,
  floatWithin,
  integer,
  integerWithin,
  list,
  optional,
  type Struct,
  struct,
  text,
} from "./shapes";

// What comes from a device is multiplied and rounded by the coordinator: nothing may be infinite or not a number there.
const MOST_BYTES = 2 ** 44;
const coefficient = floatWithin(0, 1e9);
const size = integerWithin(0, MOST_BYTES);

/** Processors of one kind. */
export interface CoreGroup {
  readonly name: string;
  readonly count: number;
  readonly max_mhz: number | null;
}
export const CoreGroup: Struct<CoreGroup> = struct<CoreGroup>("CoreGroup", {
  name: text,
  count: integer,
  max_mhz: defaulted(optional(float), null),
});

/** Measured growth = max(floor, scale x predicted growth + offset), growth being a trainer's peak above idle. */
export interface MemoryLine {
  readonly scale: number;
  readonly offset_bytes: number;
  /** The most that a measured peak was above that. */
  readonly missing_bytes: number;
  readonly points: number;
  /** Seconds since 1970. */
  readonly measured_at: number;
  readonly floor_bytes: number;
  readonly floor_base_bytes: number;
  readonly floor_graph_scale: number;
}
export const MemoryLine: Struct<MemoryLine> = struct<MemoryLine>("MemoryLine", {
  scale: coefficient,
  offset_bytes: integerWithin(-MOST_BYTES, MOST_BYTES),
  missing_bytes: defaulted(size, 0),
  points: defaulted(integer, 0),
  measured_at: defaulted(float, 0),
  floor_bytes: defaulted(size, 0),
  floor_base_bytes: defaulted(size, 0),
  floor_graph_scale: defaulted(coefficient, 0),
});

/** The time of a training step by its work, with one number of threads. */
export interface StepLine {
  readonly threads: number;
  readonly constant_ms: number;
  readonly gigamac_ms: number;
  readonly megabyte_ms: number;
  readonly median_error: number;
  readonly points: number;
  readonly measured_at: number;
  readonly graph_kilobyte_ms: number;
  readonly megaparameter_ms: number;
  readonly convolution_gigamac_ms: number;
  readonly padded_gigamac_ms: number;
  readonly matrix_gigamac_ms: number;
}
export const StepLine: Struct<StepLine> = struct<StepLine>("StepLine", {
  threads: integerWithin(1, Number.MAX_SAFE_INTEGER),
  constant_ms: coefficient,
  gigamac_ms: coefficient,
  megabyte_ms: coefficient,
  median_error: defaulted(float, 0),
  points: defaulted(integer, 0),
  measured_at: defaulted(float, 0),
  graph_kilobyte_ms: defaulted(coefficient, 0),
  megaparameter_ms: defaulted(coefficient, 0),
  convolution_gigamac_ms: defaulted(coefficient, 0),
  padded_gigamac_ms: defaulted(coefficient, 0),
  matrix_gigamac_ms: defaulted(coefficient, 0),
});

/** A device at one moment. `DeviceProfile.make({device, ...})` fills in what is not known. */
export interface DeviceProfile {
  readonly device: string;
  /** What agent and trainer together may reach; 0 when the owner set none. */
  readonly budget_bytes: number;
  readonly ram_bytes: number;
  readonly free_ram_bytes: number;
  readonly cpu_count: number;
  readonly cpu_model: string;
  readonly machine: string;
  readonly system: string;
  readonly storage_free_bytes: number;
  readonly temperature_c: number | null;
  readonly battery_percent: number | null;
  readonly charging: boolean | null;
  readonly supervisor_idle_bytes: number;
  /** Runtime name -> bytes of a trainer with that runtime loaded, before any artifact. */
  readonly trainer_idle_bytes: Readonly<Record<string, number>>;
  /** Seconds since 1970. */
  readonly probed_at: number;
  /** Runtime name -> most threads a step of it uses here. */
  readonly max_threads: Readonly<Record<string, number>>;
  readonly sparse_below: Readonly<Record<string, Readonly<Record<string, number>>>>;
  readonly board: string;
  readonly cores: readonly CoreGroup[];
  readonly cpu_mhz: number | null;
  readonly cpu_max_mhz: number | null;
  readonly throttling: readonly string[] | null;
  readonly memory_limit_bytes: number | null;
  readonly storage_total_bytes: number;
  readonly link_bytes_per_s: number | null;
  readonly link_measured_at: number;
  readonly link_method: string;
  readonly os_name: string;
  readonly python: string;
  /** Runtime name -> version. */
  readonly runtimes: Readonly<Record<string, string>>;
  /** Field -> where its value came from. */
  readonly sources: Readonly<Record<string, string>>;
  readonly memory_lines: Readonly<Record<string, MemoryLine>>;
  readonly step_lines: Readonly<Record<string, readonly StepLine[]>>;
}
export const DeviceProfile: Struct<DeviceProfile> = struct<DeviceProfile>("DeviceProfile", {
  device: text,
  budget_bytes: defaulted(integer, 0),
  ram_bytes: defaulted(integer, 0),
  free_ram_bytes: defaulted(integer, 0),
  cpu_count: defaulted(integer, 1),
  cpu_model: defaulted(text, ""),
  machine: defaulted(text, ""),
  system: defaulted(text, ""),
  storage_free_bytes: defaulted(integer, 0),
  temperature_c: defaulted(optional(float), null),
  battery_percent: defaulted(optional(float), null),
  charging: defaulted(optional(flag), null),
  supervisor_idle_bytes: defaulted(integer, 0),
  trainer_idle_bytes: defaulted(dict(integer), {}),
  probed_at: defaulted(float, 0),
  max_threads: defaulted(dict(integer), {}),
  sparse_below: defaulted(dict(dict(float)), {}),
  board: defaulted(text, ""),
  cores: defaulted(list(CoreGroup), []),
  cpu_mhz: defaulted(optional(float), null),
  cpu_max_mhz: defaulted(optional(float), null),
  throttling: defaulted(optional(list(text)), null),
  memory_limit_bytes: defaulted(optional(integer), null),
  storage_total_bytes: defaulted(integer, 0),
  link_bytes_per_s: defaulted(optional(float), null),
  link_measured_at: defaulted(float, 0),
  link_method: defaulted(text, ""),
  os_name: defaulted(text, ""),
  python: defaulted(text, ""),
  runtimes: defaulted(dict(text), {}),
  sources: defaulted(dict(text), {}),
  memory_lines: defaulted(dict(MemoryLine), {}),
  step_lines: defaulted(dict(list(StepLine)), {}),
});
