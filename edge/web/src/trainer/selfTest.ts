/** An artifact's self-test: formula weights, a fixed batch, the losses of the first steps. Needs no data. */

import { DeviceRefused } from "../contracts/errors";
import type { ArtifactManifest } from "../contracts/manifest";
import { selfTestValue } from "../contracts/streams";
import type { Role, Tensor, TensorSpec } from "../contracts/tensors";
import { runStep, stepPrograms, TRAIN } from "./microBatches";
import type { Session, StateSource } from "./session";
import { scalar } from "./training";

const FORMULA_ROLES: ReadonlySet<Role> = new Set(["input", "target", "label_mask", "draw"]);

/** The feeds of the self-test's steps; the session's state is overwritten with its weights. */
export function loadSelfTest(
  session: Session,
  manifest: ArtifactManifest,
  batch = manifest.self_test.batch,
): Map<string, Tensor> {
  const read = new Set(manifest.programs.flatMap((program) => program.inputs));
  const specs = new Map(manifest.tensors.filter((spec) => read.has(spec.name)).map((spec) => [spec.name, spec]));
  const source: StateSource = {
    has: (name) => specs.has(name),
    get: (name) => {
      const spec = specs.get(name);
      return spec && formulaValue(spec, manifest, batch);
    },
  };
  session.loadState(source);
  const feeds = new Map<string, Tensor>();
  for (const program of stepPrograms(manifest, TRAIN)) {
    for (const name of program.inputs) {
      const spec = specs.get(name) as TensorSpec;
      if (spec.role === "hyper") feeds.set(name, scalar(spec, manifest.self_test.hyper[name] ?? 0));
      else if (FORMULA_ROLES.has(spec.role)) {
        feeds.set(name, formulaValue(spec, manifest, batch));
      }
    }
  }
  return feeds;
}

/**
 * The largest difference of the first losses from the manifest's, relative to those.
 *
 * @throws DeviceRefused where a loss is off by more than the manifest's tolerance; the message has both values
 */
export async function checkSelfTest(session: Session, manifest: ArtifactManifest, steps = 1): Promise<number> {
  const test = manifest.self_test;
  const feeds = loadSelfTest(session, manifest);
  let worst = 0;
  for (const [step, wanted] of test.losses.slice(0, steps).entries()) {
    const loss = (await runStep(session, manifest, TRAIN, feeds)).get("loss") ?? Number.NaN;
    const difference = Math.abs(loss - wanted) / Math.max(Math.abs(wanted), 1e-6);
    worst = Math.max(worst, difference);
    if (!(difference <= test.rel_tolerance)) {
      throw new DeviceRefused(
        `self-test of ${manifest.runtime} artifact: loss ${loss.toPrecision(6)} in step ${step}, ` +
          `${wanted.toPrecision(6)} expected within ${test.rel_tolerance}; this runtime computes something else: ` +
          "update the page or the browser",
      );
    }
  }
  return worst;
}

function formulaValue(spec: TensorSpec, manifest: ArtifactManifest, batch: number): Tensor {
  const high = spec.role === "input" ? manifest.input.vocabulary : manifest.classes.length;
  return selfTestValue(spec, manifest.self_test.seed, batch, Math.max(2, high), manifest.self_test);
}
