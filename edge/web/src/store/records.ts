/** Small things a device remembers over reloads, by key: work that is done and not acknowledged, settings, its key. */

export interface Records {
  /** The value, structured-cloned; undefined when there is none. */
  get<T>(key: string): Promise<T | undefined>;
  put(key: string, value: unknown): Promise<void>;
  delete(key: string): Promise<void>;
  keys(prefix: string): Promise<string[]>;
}
