/** What a blob store keeps its bytes in: flat names, each file written whole or not at all. */

export interface FileEntry {
  readonly name: string;
  readonly size: number;
  /** Milliseconds since 1970, of the last write. */
  readonly writtenAt: number;
}

export interface Files {
  list(): Promise<FileEntry[]>;
  /** The file's bytes; undefined when there is none of that name. */
  read(name: string): Promise<Uint8Array<ArrayBuffer> | undefined>;
  has(name: string): Promise<boolean>;
  write(name: string, data: Uint8Array): Promise<void>;
  /** Nothing when there is none of that name. */
  remove(name: string): Promise<void>;
}
