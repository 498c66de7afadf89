/** A QR code read by the camera, where the browser has a detector of its own. */

import { button } from "./controls";
import { element } from "./element";

interface Detector {
  detect(source: CanvasImageSource): Promise<readonly { readonly rawValue: string }[]>;
}

interface DetectorClass {
  new (options: { formats: string[] }): Detector;
  getSupportedFormats(): Promise<string[]>;
}

const PAUSE_MS = 200;

function detectorClass(): DetectorClass | undefined {
  return (globalThis as { BarcodeDetector?: DetectorClass }).BarcodeDetector;
}

export async function canScan(): Promise<boolean> {
  const found = detectorClass();
  if (found === undefined || navigator.mediaDevices === undefined) return false;
  return (await found.getSupportedFormats()).includes("qr_code");
}

export interface Scanner {
  readonly root: HTMLElement;
  stop(): void;
}

export function scanner(onText: (text: string) => void): Scanner {
  const note = element("p.detail", { role: "status" });
  const video = element("video.camera", { playsinline: true, muted: true, "aria-label": "Camera picture" });
  let stream: MediaStream | null = null;

  const stop = () => {
    for (const track of stream?.getTracks() ?? []) track.stop();
    stream = null;
    video.hidden = true;
    start.hidden = false;
  };
  const look = async (detector: Detector) => {
    while (stream !== null) {
      const [code] = await detector.detect(video).catch(() => []);
      if (code !== undefined && stream !== null) {
        stop();
        onText(code.rawValue);
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  };
  const start = button("Scan a QR code", async () => {
    const Found = detectorClass();
    if (Found === undefined) return;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      note.textContent = "The camera cannot be used; allow it in the browser's settings, or paste the link.";
      return;
    }
    video.srcObject = stream;
    video.hidden = false;
    start.hidden = true;
    note.textContent = "Hold the code in front of the camera.";
    await video.play();
    await look(new Found({ formats: ["qr_code"] }));
  });
  video.hidden = true;
  return { root: element("div.scanner", {}, start, video, note), stop };
}
