/** The motion sensors, recorded with a class: windows of acceleration and rotation at 50 Hz. */

import { button, field } from "./controls";
import { element } from "./element";
import type { PageActions } from "./model";
import type { Panel } from "./views/examples";

const HERTZ = 50;
/** 2.56 s with half an overlap, as in UCI HAR (Anguita et al. 2013, section 3). */
const WINDOW = 128;

type Sample = readonly number[];

/** Windows of `WINDOW` samples [6], each beginning half a window after the one before. */
export function windowsOf(samples: readonly Sample[]): Sample[][] {
  const windows: Sample[][] = [];
  for (let start = 0; start + WINDOW <= samples.length; start += WINDOW / 2) {
    windows.push(samples.slice(start, start + WINDOW));
  }
  return windows;
}

/** iOS asks the owner first, and only after a touch. */
interface AskingMotionEvent {
  requestPermission?: () => Promise<string>;
}

export function motionPanel(actions: PageActions): Panel {
  const label = field("Class of this recording", { type: "text", placeholder: "walking", maxlength: "60" });
  const note = element("p.detail", { role: "status" }, "Start, then move. Each 2.6 seconds become an example.");
  let samples: Sample[] = [];
  let latest: Sample = [0, 0, 0, 0, 0, 0];
  let hasMoved = false;
  let timer: ReturnType<typeof setInterval> | undefined;

  const onMotion = (event: DeviceMotionEvent) => {
    const { acceleration: a, rotationRate: r } = event;
    if (a === null && r === null) return;
    hasMoved = true;
    latest = [a?.x ?? 0, a?.y ?? 0, a?.z ?? 0, r?.alpha ?? 0, r?.beta ?? 0, r?.gamma ?? 0];
  };
  const stop = () => {
    clearInterval(timer);
    timer = undefined;
    removeEventListener("devicemotion", onMotion);
  };
  const start = async () => {
    const Asking = (globalThis as { DeviceMotionEvent?: AskingMotionEvent }).DeviceMotionEvent;
    if (Asking === undefined || (await Asking.requestPermission?.().catch(() => "denied")) === "denied") {
      note.textContent = "The motion sensors cannot be used; allow them in the browser's settings.";
      return;
    }
    samples = [];
    hasMoved = false;
    addEventListener("devicemotion", onMotion);
    toggleButton.textContent = "Stop and keep";
    // Events come at the device's own pace; a clock of our own makes the samples even.
    timer = setInterval(() => {
      if (hasMoved) samples.push(latest);
      note.textContent = hasMoved ? `${(samples.length / HERTZ).toFixed(0)} s recorded.` : "No sensor answers yet.";
    }, 1000 / HERTZ);
  };
  const toggleButton = button(
    "Start recording",
    async () => {
      const name = label.input.value.trim();
      if (name === "") return label.input.focus();
      if (timer === undefined) return start();
      stop();
      toggleButton.textContent = "Start recording";
      const windows = windowsOf(samples);
      if (windows.length === 0) {
        note.textContent = "Too short: record for at least 3 seconds.";
        return;
      }
      await actions.addMotion(windows, name);
      note.textContent = `${windows.length} kept as “${name}”.`;
    },
    "main",
  );
  return { root: element("div", {}, label.root, toggleButton, note), stop };
}
