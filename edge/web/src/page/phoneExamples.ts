/** The data store as the views ask for it: what is picked, taken or recorded here goes in under a class. */

import type { DataStore, LabelledWindow } from "../data/dataStore";
import { filesOfInput, type LabelledPicture, type PickedFile, readPicked } from "../data/pickedFiles";
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

  async addPicture(picture: LabelledPicture): Promise<void> {
    await this.#store.addCapture(picture);
    await this.refresh();
  }

  async addMotion(windows: readonly LabelledWindow[]): Promise<void> {
    await this.#store.addRecording(windows);
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
