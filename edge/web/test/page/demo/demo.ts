/** The views on a scripted state: `?scene=waiting#training`. Served by the development server only. */

import type { PageActions, PageState } from "../../../src/page/model";
import { buildShell } from "../../../src/page/shell";
import { SCENES } from "./scenes";

const name = new URLSearchParams(location.search).get("scene") ?? "training";
let state: PageState = SCENES[name] ?? (SCENES.training as PageState);

const change = async (next: Partial<PageState>) => {
  state = { ...state, ...next };
  show(state);
};

const actions: PageActions = {
  invite: () => change({ phase: "invited", invitation: { device: "phone-anna", host: "192.168.178.20:8443" } }),
  join: () => change({ phase: "joined" }),
  stay: () => change({ phase: "joined" }),
  leave: () => change({ phase: "uninvited" }),
  setTraining: (wantsTraining) => change({ wantsTraining }),
  setBudget: (budgetBytes) => change({ device: { ...state.device, budgetBytes } }),
  setConditions: (conditions) => change({ conditions: { ...state.conditions, ...conditions } }),
  clearCache: () => change({ device: { ...state.device, storageBytes: 0 } }),
  addFiles: async () => {},
  addPicture: async () => {},
  addMotion: async () => {},
  deleteData: (id) =>
    change({ data: { ...state.data, entries: state.data.entries.filter((entry) => entry.id !== id) } }),
  deleteAllData: () => change({ data: { ...state.data, entries: [] } }),
  dismissProblem: () => void change({ problem: null }),
};

const show = buildShell(document.body, actions);
show(state);
document.body.dataset.ready = "yes";
