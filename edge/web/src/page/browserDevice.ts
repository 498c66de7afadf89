/** This device as the page knows it: facts for the views, conditions and profile for the agent. */

import { ALWAYS, type Conditions } from "../agent/conditions";
import type { ProfileSource } from "../agent/profileSource";
import { DeviceProfile } from "../contracts/profile";
import type { Records } from "../store/records";
import { maxThreads } from "../trainer/runtimeThreads";
import type { DeviceFacts, OwnerConditions } from "./model";

export class BrowserDevice {
  readonly conditions: Conditions = ALWAYS;
  readonly profileSource: ProfileSource = {
    profile: async () => DeviceProfile.make({ device: "" }),
    measured: async () => {},
  };

  static async open(
    _records: Records,
    _conditions: OwnerConditions,
    show: (facts: Partial<DeviceFacts>) => void,
  ): Promise<BrowserDevice> {
    const cores = navigator.hardwareConcurrency ?? 1;
    show({ cores, maxThreads: maxThreads(), suggestedBytes: 512_000_000 });
    return new BrowserDevice();
  }

  setConditions(_conditions: OwnerConditions): void {}

  isTraining(_is: boolean): void {}
}
