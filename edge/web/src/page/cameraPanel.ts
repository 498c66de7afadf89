/** Pictures taken here, each with the class that is typed above them. */

import { button, field } from "./controls";
import { element } from "./element";
import type { PageActions } from "./model";
import type { Panel } from "./views/examples";

/** Longer side of what is kept: training shrinks it further, and a full photograph would fill the storage. */
const KEPT_PIXELS = 512;

export function cameraPanel(actions: PageActions): Panel {
  const label = field("Class of the next pictures", { type: "text", placeholder: "cat", maxlength: "60" });
  const video = element("video.camera", { playsinline: true, muted: true, "aria-label": "Camera picture" });
  const note = element("p.detail", { role: "status" }, "Asking for the camera…");
  let stream: MediaStream | null = null;
  let isStopped = false;
  let taken = 0;

  const take = button(
    "Take a picture",
    async () => {
      const name = label.input.value.trim();
      if (name === "") return label.input.focus();
      const picture = await pictureOf(video);
      if (picture === null) return;
      await actions.addPicture(picture, name);
      taken += 1;
      note.textContent = `${taken} taken, the last one as “${name}”.`;
    },
    "main",
  );
  take.hidden = true;
  video.hidden = true;

  void (async () => {
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      note.textContent = "The camera cannot be used; allow it in the browser's settings.";
      return;
    }
    if (isStopped) return stop();
    video.srcObject = stream;
    video.hidden = false;
    take.hidden = false;
    note.textContent = "";
    await video.play();
  })();

  function stop(): void {
    isStopped = true;
    for (const track of stream?.getTracks() ?? []) track.stop();
  }
  return { root: element("div", {}, label.root, video, take, note), stop };
}

async function pictureOf(video: HTMLVideoElement): Promise<Blob | null> {
  const scale = Math.min(1, KEPT_PIXELS / Math.max(video.videoWidth, video.videoHeight, 1));
  const canvas = element("canvas", {
    width: String(Math.round(video.videoWidth * scale)),
    height: String(Math.round(video.videoHeight * scale)),
  });
  canvas.getContext("2d")?.drawImage(video, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
