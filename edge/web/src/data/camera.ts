/** Pictures taken with a label. Frames are read from the camera's track; nothing of them leaves the device. */

import { DataError, DeviceRefused } from "../contracts/errors";
import type { LabelledPicture } from "./pickedFiles";

/** Pictures are kept this large at most, the longer side: artifacts take far smaller ones. */
export const LONGEST_SIDE = 1024;
const JPEG_QUALITY = 0.95;

/** The element that shows the preview, an HTMLVideoElement. */
export interface Preview {
  srcObject: MediaProvider | null;
  readonly videoWidth: number;
  readonly videoHeight: number;
  play(): Promise<void>;
  pause(): void;
}

/** A camera that is on from {@link open} until {@link stop}, which its light shows. */
export class Camera {
  #number = 0;

  private constructor(
    private readonly preview: Preview & CanvasImageSource,
    private readonly stream: MediaStream,
  ) {}

  /**
   * Asks the owner for the camera and shows it in `preview`.
   *
   * @throws DeviceRefused when there is none, the owner says no, or the page is not secure.
   */
  static async open(
    preview: Preview & CanvasImageSource,
    facing: "environment" | "user" = "environment",
  ): Promise<Camera> {
    const devices = navigator.mediaDevices as MediaDevices | undefined;
    if (devices?.getUserMedia === undefined) {
      throw new DeviceRefused("this page has no camera: open it over HTTPS in a browser that has one");
    }
    let stream: MediaStream;
    try {
      stream = await devices.getUserMedia({ audio: false, video: { facingMode: { ideal: facing } } });
    } catch (cause) {
      throw new DeviceRefused(reasonOf(cause as Error), { cause });
    }
    const camera = new Camera(preview, stream);
    try {
      preview.srcObject = stream;
      await preview.play();
    } catch (cause) {
      camera.stop();
      throw new DeviceRefused(`the camera gives no picture (${(cause as Error).message}); try again`, { cause });
    }
    return camera;
  }

  get isOn(): boolean {
    return this.stream.getTracks().some((track) => track.readyState === "live");
  }

  /** What the preview shows now, as a JPEG file. @throws DataError while there is no picture, or no label. */
  async capture(label: string): Promise<LabelledPicture> {
    const name = label.trim();
    if (name === "") throw new DataError("a picture needs a label; write what it shows");
    const { videoWidth, videoHeight } = this.preview;
    if (!this.isOn || videoWidth === 0) throw new DataError("the camera shows no picture yet; wait, or open it again");
    const scale = Math.min(1, LONGEST_SIDE / Math.max(videoWidth, videoHeight));
    const [width, height] = [Math.round(videoWidth * scale), Math.round(videoHeight * scale)];
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d");
    if (context === null) throw new DataError("no memory for a picture; close other pages");
    context.drawImage(this.preview, 0, 0, width, height);
    const blob = await canvas.convertToBlob({ type: "image/jpeg", quality: JPEG_QUALITY });
    this.#number += 1;
    const bytes = new Uint8Array(await blob.arrayBuffer());
    return { bytes, type: blob.type, name: `camera/${name}/${this.#number}.jpg`, label: name };
  }

  /** Switches the camera off. */
  stop(): void {
    for (const track of this.stream.getTracks()) track.stop();
    this.preview.pause();
    this.preview.srcObject = null;
  }
}

function reasonOf(error: Error): string {
  switch (error.name) {
    case "NotAllowedError":
      return "the camera was not allowed; allow it for this page in the browser's settings";
    case "NotFoundError":
    case "OverconstrainedError":
      return "this device has no camera; pick picture files instead";
    case "NotReadableError":
      return "the camera is in use elsewhere; close the other app or page";
    default:
      return `the camera cannot be opened (${error.message}); pick picture files instead`;
  }
}
