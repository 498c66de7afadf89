/** Topic names, and who a topic belongs to: `apportion/v1/<federation>/{up,dn}/<device>/<kind>`, `.../all/<kind>`. */

import { MessageRejected } from "./errors";

export const PREFIX = "apportion/v1";

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

/** `name` itself when it can be part of a topic, a folder name and a certificate; MessageRejected otherwise. */
export function checkName(name: string, what: string): string {
  if (!NAME.test(name) || name.includes("..")) {
    throw new MessageRejected(
      `${what} '${name.slice(0, 80)}' is not usable: 1 to 64 letters, digits, '.', '_' or '-', ` +
        "beginning with a letter or digit",
    );
  }
  return name;
}

/** Topic of a message from `device` to the coordinator. */
export function up(federation: string, device: string, kind: string): string {
  return `${PREFIX}/${federation}/up/${device}/${kind}`;
}

/** Topic of a message from the coordinator to `device`. */
export function down(federation: string, device: string, kind: string): string {
  return `${PREFIX}/${federation}/dn/${device}/${kind}`;
}

/** Topic of a message from the coordinator to all devices. */
export function everyone(federation: string, kind: string): string {
  return `${PREFIX}/${federation}/all/${kind}`;
}

/** What a device subscribes to. */
export function deviceFilters(federation: string, device: string): readonly [string, string] {
  return [`${PREFIX}/${federation}/dn/${device}/#`, `${PREFIX}/${federation}/all/#`];
}

/** The message kind, the topic's last part. */
export function kindOf(topic: string): string {
  return topic.slice(topic.lastIndexOf("/") + 1);
}
