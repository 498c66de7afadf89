/** Pictures taken here, each with the class that is typed above them. */

import { Camera } from "../data/camera";
import { button, field } from "./controls";
import { element } from "./element";
import type { PageActions } from "./model";
import { problemOf } from "./problem";
import type { Panel } from "./views/examples";
import { sentence } from "./words";

export function cameraPanel(actions: PageActions): Panel {
  const label = field("Class of the next pictures", { type: "text", placeholder: "cat", maxlength: "60" });
  const video = element("video.camera", { playsinline: true, muted: true, "aria-label": "Camera picture" });
  const note = element("p.detail", { role: "status" }, "Asking for the camera…");
  let camera: Camera | null = null;
  let isStopped = false;
  let taken = 0;

  const say = (text: string) => {
    note.textContent = sentence(text);
  };
  const take = button(
    "Take a picture",
    async () => {
      if (label.input.value.trim() === "") return label.input.focus();
      try {
        const picture = await camera?.capture(label.input.value);
        if (picture === undefined) return;
        await actions.addPicture(picture);
        taken += 1;
        say(`${taken} taken, the last one as “${picture.label}”`);
      } catch (error) {
        say(problemOf(error).message);
      }
    },
    "main",
  );
  const stop = () => {
    isStopped = true;
    camera?.stop();
  };
  take.hidden = true;
  video.hidden = true;
  Camera.open(video).then(
    (opened) => {
      camera = opened;
      if (isStopped) return stop();
      video.hidden = false;
      take.hidden = false;
      say("");
    },
    (error) => say(problemOf(error).message),
  );
  return { root: element("div", {}, label.root, video, take, note), stop };
}
