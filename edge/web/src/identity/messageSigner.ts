/** Signs what this device sends, as `seal` asks for it. */

import type { Sign } from "../contracts/envelope";
import { messageText } from "../contracts/signing";
import type { DeviceKey } from "./deviceKey";

export function messageSigner(key: DeviceKey, federation: string, device: string): Sign {
  return (body, kind, id) => key.sign(messageText(federation, device, kind, id, body));
}
