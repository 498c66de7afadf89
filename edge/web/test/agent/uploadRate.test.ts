import { describe, expect, it } from "vitest";
import { Uploader } from "../../src/agent/uploader";
import type { Bodies, Kind } from "../../src/contracts/messages";
import { TrainReport } from "../../src/contracts/report";

const SIZE = 8 * 2 ** 20;
const BYTES_PER_S = 4_000_000 / 8;
const DELAY_S = 0.03;
const IDEAL_S = SIZE / BYTES_PER_S;
const UPDATE = { digest: "d", size: SIZE, encoding: "raw" as const, encoded_size: SIZE };

interface Course {
  /** Grants go out for 128 KiB at a time, so many ahead, as a coordinator's do. */
  readonly window?: number;
  /** The coordinator takes nothing in between these times. */
  readonly pauses?: readonly (readonly [number, number])[];
  /** Of the puts that arrive, counted from 0, those that are lost. */
  readonly lost?: readonly number[];
  readonly bytesPerS?: number;
}

/** An update over a link with a rate and 60 ms to and fro, in its own time. Ends when all has arrived. */
function upload({ window = 4, pauses = [], lost = [], bytesPerS = BYTES_PER_S }: Course) {
  const events: { at: number; do: () => void }[] = [];
  const later = (at: number, what: () => void) => events.push({ at, do: what });
  let [now, linkFreeAt, held, sentBytes, puts] = [0, 0, 0, 0, 0];
  const grant = () => {
    const offset = held;
    later(now + DELAY_S, () =>
      uploader.granted({ assignment_id: "a", digest: "d", offset, block_bytes: 131_072, window }, now),
    );
  };
  const arrive = (kind: Kind, body: Bodies[Kind]) => {
    const pause = pauses.find(([from, to]) => now >= from && now < to);
    if (pause !== undefined) return later(pause[1], () => arrive(kind, body));
    if (kind === "put") {
      const { offset, data } = body as Bodies["put"];
      puts += 1;
      if (lost.includes(puts - 1)) return;
      if (offset === held) held += data.length;
    }
    grant();
  };
  const send = (kind: Kind, body: Bodies[Kind]) => {
    const bytes = kind === "put" ? (body as Bodies["put"]).data.length : 200;
    sentBytes += bytes;
    linkFreeAt = Math.max(linkFreeAt, now) + bytes / bytesPerS;
    later(linkFreeAt + DELAY_S, () => arrive(kind, body));
  };
  const report = TrainReport.make({
    ...{ assignment_id: "a", device: "phone-1", round: 0, num_examples: 1, steps: 1, loss: 1, metrics: {} },
    ...{ step_ms_p50: 1, step_ms_p95: 1, trainer_peak_bytes: 1, supervisor_peak_bytes: 1, trainer_idle_bytes: 1 },
    ...{ budget_bytes: 0, over_budget: false, torch_loaded: false, runtime: "onnxruntime_web", bytes_down: 0 },
    ...{ bytes_up: SIZE, update: UPDATE, wall_s: 1 },
  });
  const uploader = new Uploader(report, new Uint8Array(SIZE), send, 0);
  const tick = () => {
    uploader.tick(now);
    later(now + 0.25, tick);
  };
  later(0, tick);
  while (!uploader.isComplete && now < 1_000) {
    const next = events.reduce((first, event) => (event.at < first.at ? event : first));
    events.splice(events.indexOf(next), 1);
    now = next.at;
    next.do();
  }
  return { seconds: now, share: sentBytes / SIZE };
}

describe("an update of 8 MB", () => {
  it.each([
    ["without trouble", {}, 1],
    ["while the coordinator pauses for 4 s", { pauses: [[5, 9]] }, 5],
    [
      "while the coordinator pauses again and again",
      {
        pauses: [
          [1, 4],
          [7, 10],
          [15, 18],
        ],
      },
      10,
    ],
    ["that a coordinator is slow to take", { pauses: [[0, 6]] }, 7],
  ] as [string, Course, number][])("travels once, at the rate of the link, %s", (_, course, laterS) => {
    const { seconds, share } = upload(course);
    expect(seconds).toBeLessThan(IDEAL_S + laterS);
    expect(share).toBeLessThan(1.01);
  });

  it("travels once over a link that takes longer for a block than a stall lasts", () => {
    for (const pauses of [[], [[50, 70]]] as Course["pauses"][]) {
      const { seconds, share } = upload({ bytesPerS: 40_000, pauses: pauses ?? [] });
      expect(seconds).toBeLessThan(SIZE / 40_000 + 10);
      expect(share).toBeLessThan(1.01);
    }
  });

  it("sends again what was lost, and little more", () => {
    expect(upload({ lost: [10] }).share).toBeLessThan(1.07);
    for (let first = 0; first < 20; first++) {
      const lost = [first, first + 1, 3 * first + 7, 3 * first + 8, 3 * first + 9, 3 * first + 10, 60];
      const { seconds, share } = upload({ lost, pauses: first % 2 === 0 ? [] : [[first / 4, first / 4 + 5]] });
      expect(seconds).toBeLessThan(IDEAL_S + 40);
      expect(share).toBeLessThan(1.6);
    }
  });
});
