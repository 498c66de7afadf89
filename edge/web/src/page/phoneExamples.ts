/** The data store as the views ask for it: what is picked, taken or recorded here goes in under a class. */

import { DataError } from "../contracts/errors";
import type { DataStore, LabelledWindow } from "../data/dataStore";
import { filesOfInput, type PickedFile, readPicked } from "../data/pickedFiles";
import type { DataEntry, DataState } from "./model";

export class PhoneExamples {
  readonly #store: DataStore;
  readonly #changed: (state: Omit<DataState, "busy">) => void;

  /** @param changed called with what is there now, after every change */
  constructor(store: DataStore, changed: (state: Omit<DataState, "busy">) => void) {
    this.#store = store;
    this.#changed = changed;
  }

  async refresh(): Promise<void> {
    const entries: DataEntry[] = (await this.#store.list()).map(({ addedAt: _, ...info }) => info);
    const { error } = await this.#store.summary();
    // That there is nothing is said by the view itself.
    this.#changed({ entries, error: entries.length === 0 ? "" : error });
  }

  /** With `label`, pictures of that class; else folders named by class, .npz and .csv. */
  async addFiles(files: readonly File[], label: string): Promise<void> {
    const picked = filesOfInput(files).map((file) => (label === "" ? file : within(file, label)));
    for (const source of await readPicked(picked)) {
      await this.#store.add(label === "" ? source : { ...source, name: label });
    }
    await this.refresh();
  }

  async addPicture(picture: Blob, label: string): Promise<void> {
    const bytes = new Uint8Array(await picture.arrayBuffer());
    await this.#store.addCapture({ bytes, type: picture.type, name: "camera picture", label });
    await this.refresh();
  }

  /** Windows [samples][channels] of one class. */
  async addMotion(windows: readonly (readonly (readonly number[])[])[], label: string): Promise<void> {
    const labelled = windows.map((window): LabelledWindow => {
      const channels = window[0]?.length ?? 0;
      if (channels === 0) throw new DataError("the recording is empty; record again");
      return { values: Float32Array.from(window.flat()), shape: [window.length, channels], label };
    });
    await this.#store.addRecording(labelled);
    await this.refresh();
  }

  async delete(id: string): Promise<void> {
    await this.#store.remove(id);
    await this.refresh();
  }

  async clear(): Promise<void> {
    await this.#store.clear();
    await this.refresh();
  }
}

/** The folder that a picture lies in is its class; a label may hold no separator of folders. */
function within(file: PickedFile, label: string): PickedFile {
  const name = file.path.split("/").at(-1) ?? file.path;
  return {
    path: `pictures/${label.replaceAll("/", " ").replace(/^\.+/, "")}/${name}`,
    type: file.type,
    arrayBuffer: () => file.arrayBuffer(),
  };
}
