/** The agent as a library: what an app that embeds it imports. */

export type { Transport, TransportEvent } from "./transport/transport";
