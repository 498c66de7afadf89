/** The motion sensors, recorded with a class. */

import { MotionRecording } from "../data/motion";
import { button, field } from "./controls";
import { element } from "./element";
import type { PageActions } from "./model";
import { problemOf } from "./problem";
import { countText } from "./quantities";
import type { Panel } from "./views/examples";
import { sentence } from "./words";

const SHOWN_EVERY_MS = 500;

export function motionPanel(actions: PageActions): Panel {
  const label = field("Class of this recording", { type: "text", placeholder: "walking", maxlength: "60" });
  const note = element("p.detail", { role: "status" }, "Start, then move. Each few seconds become an example.");
  let recording: MotionRecording | null = null;
  let timer: ReturnType<typeof setInterval> | undefined;

  const say = (text: string) => {
    note.textContent = sentence(text);
  };
  const end = () => {
    clearInterval(timer);
    const ended = recording;
    recording = null;
    record.textContent = "Start recording";
    return ended?.stop() ?? [];
  };
  const start = async () => {
    say("Waiting for the sensors…");
    recording = await MotionRecording.start(label.input.value);
    record.textContent = "Stop and keep";
    timer = setInterval(() => say(`${Math.floor(recording?.seconds ?? 0)} s recorded`), SHOWN_EVERY_MS);
  };
  const keep = async () => {
    const windows = end();
    if (windows.length === 0) return say("Too short: record for at least 3 seconds");
    await actions.addMotion(windows);
    say(`${countText(windows.length, "example")} kept as “${windows[0]?.label}”`);
  };
  const record = button(
    "Start recording",
    async () => {
      if (label.input.value.trim() === "") return label.input.focus();
      try {
        await (recording === null ? start() : keep());
      } catch (error) {
        say(problemOf(error).message);
      }
    },
    "main",
  );
  return { root: element("div", {}, label.root, record, note), stop: () => void end() };
}
