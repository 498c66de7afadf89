/** This device, what it may use, and under which conditions. */

import { button, card, confirmed, fact, stepper, toggle } from "../controls";
import { element, setList, setText } from "../element";
import type { PageActions, View } from "../model";
import { BUDGET_STEP_BYTES, leastBattery } from "../ownerSettings";
import { bytesText, countText, memoryText } from "../quantities";

const LEAST_BYTES = BUDGET_STEP_BYTES;
const MOST_BYTES = 32 * BUDGET_STEP_BYTES;

export function deviceView(actions: PageActions): View {
  const facts = {
    device: fact("Name"),
    federation: fact("Federation"),
    broker: fact("Broker", true),
    key: fact("Key", true),
    system: fact("System"),
    cores: fact("Cores"),
  };
  const budget = stepper("Memory budget", BUDGET_STEP_BYTES, memoryText, (bytes) => void actions.setBudget(bytes));
  let suggested = 0;
  const suggestion = button("", () => void actions.setBudget(suggested));
  suggestion.classList.add("quiet");

  const set = actions.setConditions.bind(actions);
  const charging = toggle("Only while charging", "", (on) => void set({ onlyWhileCharging: on }));
  const metered = toggle(
    "Also on mobile data",
    "Models are some megabytes each",
    (on) => void set({ allowMetered: on }),
  );
  const hidden = toggle(
    "Go on when hidden",
    "Browsers slow hidden pages down, or end them",
    (on) => void set({ trainHidden: on }),
  );
  const battery = stepper(
    "Least battery",
    5,
    (value) => (value === 0 ? "any" : `${value}\u00a0%`),
    (value) => void set({ minBatteryPercent: value }),
  );
  const threads = stepper(
    "Threads",
    1,
    (value) => (value === 0 ? "as asked" : String(value)),
    (value) => void set({ threads: value }),
  );

  const unreadable = element("ul.notes.detail");
  const storage = element("p");
  const meter = element("meter.wide", { min: "0", max: "1", value: "0", "aria-label": "Storage used" });
  const leave = confirmed(
    "Leave the federation",
    () => "Leave? This phone's key, its data and all that is stored here are deleted.",
    "Leave",
    () => void actions.leave(),
  );
  const root = element(
    "section.view",
    { id: "view-device", "aria-labelledby": "device-title" },
    element("h2", { id: "device-title" }, "Device"),
    card("Memory", budget.root, suggestion),
    card("When it may train", charging.root, battery.root, metered.root, hidden.root, threads.root, unreadable),
    card(
      "Storage",
      storage,
      meter,
      button("Clear cache", () => void actions.clearCache()),
      element("p.detail", {}, "Removes models and weights, which are fetched again when needed. Your data stay."),
    ),
    card("This device", element("dl.facts", {}, ...Object.values(facts).map((each) => each.root)), leave),
  );
  return {
    root,
    show: (state) => {
      root.hidden = state.phase !== "joined";
      const { device, conditions, membership } = state;
      facts.device.set(membership?.device ?? "–");
      facts.federation.set(membership?.federation || "–");
      facts.broker.set(membership?.broker || "–");
      facts.key.set(membership?.key || "–");
      facts.system.set(device.system || "Not told");
      facts.cores.set(countText(device.cores, "core"));
      budget.set(device.budgetBytes, LEAST_BYTES, MOST_BYTES);
      suggested = device.suggestedBytes;
      suggestion.hidden = suggested === 0 || suggested === device.budgetBytes;
      setText(suggestion, `Use the suggestion: ${memoryText(suggested)}`);
      charging.set(conditions.onlyWhileCharging);
      metered.set(conditions.allowMetered);
      hidden.set(conditions.trainHidden);
      battery.set(leastBattery(conditions, device.battery), 0, 95);
      setList(unreadable, device.unreadable, (text) => element("li", {}, text));
      threads.set(conditions.threads, 0, Math.max(1, device.maxThreads));
      const quota = device.storageQuota;
      setText(
        storage,
        quota > 0 ? `${bytesText(device.storageBytes)} of ${bytesText(quota)}` : bytesText(device.storageBytes),
      );
      meter.max = Math.max(1, quota);
      meter.value = device.storageBytes;
    },
  };
}
