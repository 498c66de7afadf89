// The words of the page for states, and which colour each has.

export const STATUS = {
  training: "Training", fetching: "Fetching", uploading: "Uploading", waiting: "Waiting", reported: "Reported", here: "Here, idle",
  refused: "Refused", barred: "Sits out", unusable: "Cannot take part", rejected: "Update rejected", expired: "Too late",
  away: "Away", unasked: "Never asked",
};

export const EXPLAINED = {
  training: "computes steps of its order", fetching: "gets its artifact and weights", uploading: "sends its update",
  waiting: "has an order and waits: see why", reported: "its update is in the ledger", here: "connected, without an order",
  refused: "would not or could not take its order: see why", barred: "its updates were set aside, and it sits out",
  unusable: "connected, but its data or runtime does not fit this run", rejected: "its update was not what was asked for",
  expired: "its order was not answered in time", away: "not connected", unasked: "never had an order",
};

export const ASSIGNMENT = { open: "sent", accepted: "at work", reported: "reported", refused: "refused", rejected: "rejected", expired: "too late" };

/** What became of an assignment, in words. */
export function fate(entry) {
  if (entry.quarantine) return `set aside: ${entry.quarantine}`;
  if (entry.counted_in !== null) return entry.counted_in === entry.round ? "counted" : `counted in round ${entry.counted_in + 1}`;
  if (entry.state === "reported") return entry.round_state === "abandoned" ? "not counted: round repeated" : entry.round_state === "committed" ? "not counted" : "reported";
  const why = entry.reason || entry.code;
  return `${ASSIGNMENT[entry.state]}${why ? `: ${why}` : ""}`;
}

export const fateColour = entry => entry.quarantine ? "barred" : entry.state === "open" ? "here" : entry.state === "accepted" ? "training" : entry.state;

export const ROUND = {
  planned: "planned", published: "orders sent", collecting: "devices at work", aggregating: "updates summed", committed: "done", abandoned: "repeated",
};
