/**
 * A step whose batch goes through the graph in equal parts: less memory, and the gradients of the whole batch.
 *
 * The artifact then has a program `accumulate`: the loss of one micro-batch as its share of the whole batch's, and its
 * gradients added to the tensors `<name>#gradient`. `train` takes no examples: it moves the parameters by those sums,
 * which the session sets back to zero.
 */

import { DeviceRefused } from "../contracts/errors";
import { type ArtifactManifest, type Program, programOf } from "../contracts/manifest";
import { BATCH, type Tensor } from "../contracts/tensors";
import type { Session, Tensors } from "./session";

export const ACCUMULATE = "accumulate";
export const TRAIN = "train";

/** The programs that one step of `program` runs, in order. */
export function stepPrograms(manifest: ArtifactManifest, program: string): readonly Program[] {
  const described = programOf(manifest, program);
  if (manifest.micro_batches === 1 || program !== TRAIN) return [described];
  return [programOf(manifest, ACCUMULATE), described];
}

/**
 * One step of `program` on the whole batch in `feeds`; its loss and metrics are the whole batch's.
 *
 * @throws DeviceRefused as {@link Session.run}, or for a batch that has no equal parts
 */
export async function runStep(
  session: Session,
  manifest: ArtifactManifest,
  program: string,
  feeds: Tensors,
): Promise<Map<string, number>> {
  if (stepPrograms(manifest, program).length === 1) return session.run(program, feeds);
  const values = new Map<string, number>();
  for (const part of parts(feeds, manifest)) {
    for (const [name, value] of await session.run(ACCUMULATE, part)) values.set(name, (values.get(name) ?? 0) + value);
  }
  await session.run(program, feeds);
  return values;
}

/** `feeds` as often as there are micro-batches, with consecutive equal parts (views) of what has a batch dimension. */
function* parts(feeds: Tensors, manifest: ArtifactManifest): Generator<Tensors> {
  const count = manifest.micro_batches;
  const batched = manifest.tensors.filter((spec) => spec.shape[0] === BATCH && feeds.has(spec.name));
  for (const { name } of batched) {
    const examples = feeds.get(name)?.shape[0] ?? 0;
    if (examples % count !== 0) {
      throw new DeviceRefused(
        `the artifact takes a batch in ${count} equal parts, this one has ${examples} examples; ` +
          "order last-batch drop or wrap",
      );
    }
  }
  for (let i = 0; i < count; i += 1) {
    const part = new Map(feeds);
    for (const { name } of batched) part.set(name, rows(feeds.get(name) as Tensor, i, count));
    yield part;
  }
}

function rows(value: Tensor, part: number, count: number): Tensor {
  const size = value.data.length / count;
  const [examples = 0, ...rest] = value.shape;
  return {
    dtype: value.dtype,
    shape: [examples / count, ...rest],
    data: value.data.subarray(part * size, (part + 1) * size),
  };
}
