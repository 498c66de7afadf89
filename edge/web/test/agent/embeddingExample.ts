// The example of startAgent, as an app would write it: it imports nothing but the library. tsc checks it.

import {
  BrowserProfile,
  BrowserSurroundings,
  DataStore,
  DEFAULT_SETTINGS,
  DeviceConditions,
  enrol,
  enrolment,
  filesOfInput,
  IndexedDbRecords,
  openSharedStore,
  parseClaimLink,
  type RunningAgent,
  readPicked,
  startAgent,
  WorkerTrainer,
} from "../../src/index";

export async function takePart(link: string, files: Iterable<File>): Promise<RunningAgent> {
  // begin
  const records = new IndexedDbRecords();
  if ((await enrolment(records)) === null) await enrol(parseClaimLink(link), { records });
  const data = await DataStore.open(DEFAULT_SETTINGS.data);
  for (const source of await readPicked(filesOfInput(files))) await data.add(source);
  const store = await openSharedStore(DEFAULT_SETTINGS.store);
  const surroundings = new BrowserSurroundings();
  const agent = await startAgent({
    records,
    store,
    data,
    trainer: new WorkerTrainer(),
    profile: BrowserProfile.of(surroundings, records, store),
    conditions: new DeviceConditions(surroundings),
    settings: { budgetBytes: 512 << 20 },
  });
  agent.status.subscribe(({ state, round, loss }) => console.log(state, round, loss));
  // end
  return agent;
}
