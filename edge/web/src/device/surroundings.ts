/** What a browser can tell of the device it runs on. Conditions and profile read nothing else, so tests can give it. */

/** null where the browser does not say. */
export type Told<T> = T | null;

export interface Battery {
  /** 0 to 100. */
  readonly percent: number;
  readonly charging: boolean;
}

export interface Link {
  /** `wifi`, `cellular`, ...; empty where the browser does not say. */
  readonly type: string;
  /** The owner asked the browser to save data. */
  readonly savesData: boolean;
}

/** How hard the processor is pressed. Source: Compute Pressure, W3C, "pressure states". */
export type Pressure = "nominal" | "fair" | "serious" | "critical";

/** What may change at any time. */
export interface Readings {
  readonly isHidden: boolean;
  /** By the device's own clock and zone. */
  readonly minuteOfDay: number;
  readonly link: Told<Link>;
  readonly battery: Told<Battery>;
  readonly pressure: Told<Pressure>;
  readonly storage: Told<{ readonly usage: number; readonly quota: number }>;
}

/** What stays. */
export interface Traits {
  /** Physical memory as the browser rounds and caps it. */
  readonly memoryBytes: Told<number>;
  readonly processors: number;
  /** `Android`, `iOS`, ...; empty: not told. */
  readonly platform: string;
  readonly platformVersion: string;
  /** `arm`, `x86`; empty: not told. */
  readonly architecture: string;
  /** Model of a phone; empty: not told. */
  readonly model: string;
  /** `Chromium 156`; empty: not told. */
  readonly browser: string;
}

export interface Surroundings {
  readings(): Readings;
  traits(): Promise<Traits>;
  /** Bytes that the page holds before it trains, and the call that told; null: the browser does not. */
  heldBytes(): Promise<Told<{ readonly bytes: number; readonly source: string }>>;
  /** The same now, as far as it can be read at once; what is not collected yet is in it. */
  heapBytes(): Told<number>;
  /** Milliseconds since 1970. */
  now(): number;
  /** Calls `listener` when a reading has changed, once a minute at the least; gives back what ends that. */
  subscribe(listener: () => void): () => void;
}
