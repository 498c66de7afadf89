/** What this phone is doing, in large words, and the figures below them. */

import { fact, toggle } from "../controls";
import { element, setText } from "../element";
import { lossChart } from "../lossChart";
import type { PageActions, PageState, View } from "../model";
import { bytesText, countText, durationText, memoryText } from "../quantities";
import { headline, pressureText } from "../words";

function stepText({ training }: PageState): string {
  return `Step ${training.step.toLocaleString("en")} of ${training.totalSteps.toLocaleString("en")}`;
}

function doneText({ training }: PageState): string {
  return training.rounds === 0 ? "" : countText(training.rounds, "round done", "rounds done");
}

export function trainingView(actions: PageActions): View {
  const title = element("p.state");
  const detail = element("p.lead");
  const round = element("span");
  const step = element("span");
  const progress = element("progress", { max: "1", value: "0", "aria-label": "Steps of this round" });
  const advance = element("div.advance", {}, element("div.ends", {}, round, step), progress);
  const chart = lossChart();
  const wants = toggle("Take part", "Remembered until you change it", (isOn) => void actions.setTraining(isOn));
  const status = element("section.card.status", { "aria-label": "State" }, title, detail, advance, chart.root);

  const facts = {
    stepTime: fact("Step time"),
    memory: fact("Memory in use"),
    battery: fact("Battery"),
    load: fact("Processor load"),
    sent: fact("Sent"),
    received: fact("Received"),
  };
  const root = element(
    "section.view",
    { id: "view-training", "aria-labelledby": "training-title" },
    element("h2.unseen", { id: "training-title" }, "Training"),
    status,
    element("section.card.slim", { "aria-label": "Taking part" }, wants.root),
    element(
      "section.card",
      { "aria-label": "Figures" },
      element("dl.facts", {}, ...Object.values(facts).map((each) => each.root)),
    ),
  );

  const showFacts = (state: PageState) => {
    const { training, device } = state;
    facts.stepTime.set(training.stepMs === null ? "–" : durationText(training.stepMs));
    const budget = memoryText(device.budgetBytes);
    facts.memory.set(training.usedBytes === null ? `– of ${budget}` : `${memoryText(training.usedBytes)} of ${budget}`);
    facts.battery.set(
      device.battery === null
        ? "Not told"
        : `${device.battery.percent}\u00a0%${device.battery.isCharging ? ", charging" : ""}`,
    );
    const heat = device.temperatureC === null ? "" : `, ${Math.round(device.temperatureC)} °C`;
    facts.load.set(`${pressureText(device.pressure)}${heat}`);
    facts.sent.set(bytesText(state.traffic.sentBytes));
    facts.received.set(bytesText(state.traffic.receivedBytes));
  };
  return {
    root,
    show: (state) => {
      root.hidden = state.phase !== "joined";
      const words = headline(state);
      status.dataset.tone = words.tone;
      setText(title, words.title);
      setText(detail, words.detail);
      const { training } = state;
      const isFetching = training.activity === "fetching" && training.totalBytes > 0;
      // Between orders the bar would say that something is half done: the last round is told in words.
      const isBetween = training.activity === "idle" || training.activity === "stopped";
      progress.hidden = isBetween;
      advance.hidden = isBetween ? training.round === null : training.totalSteps === 0 && !isFetching;
      // Counted from one, as the coordinator tells its owner.
      const number = training.round === null ? "" : `Round ${training.round + 1}`;
      setText(round, isBetween ? `Last: ${number.toLowerCase()}` : number);
      setText(step, isFetching ? "" : isBetween ? doneText(state) : stepText(state));
      progress.setAttribute("aria-label", isFetching ? "Fetched of the model" : "Steps of this round");
      progress.max = Math.max(1, isFetching ? training.totalBytes : training.totalSteps);
      progress.value = isFetching ? training.fetchedBytes : training.step;
      chart.show(training.losses, training.totalSteps === 0 ? 1 : training.step / training.totalSteps);
      wants.set(state.wantsTraining);
      showFacts(state);
    },
  };
}
