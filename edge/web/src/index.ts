/**
 * The agent as a library: what an app that embeds it imports. `startAgent` is the whole of it for most; the pieces
 * below are for an app that brings its own storage, transport, data or trainer.
 */

export { Agent } from "./agent/agent";
export type { AgentParts } from "./agent/agentEvents";
export { ALWAYS, type Asked, type Condition, type Conditions, type Purpose, type Unmet } from "./agent/conditions";
export { farewell } from "./agent/outbox";
export type { LinkMeasured, Measured, ProfileSource } from "./agent/profileSource";
export { type AgentSettings, DEFAULT_SETTINGS } from "./agent/settings";
export { type RunningAgent, type StartOptions, startAgent } from "./agent/startAgent";
export type { Activity, AgentStatus, Connection, LastError, TrafficEntry } from "./agent/status";
export { type ClaimLink, parseClaimLink } from "./contracts/claims";
export * from "./contracts/errors";
export type { WorkOrder } from "./contracts/plan";
export { DeviceProfile } from "./contracts/profile";
export { deviceFilters } from "./contracts/topics";
export type { DataSource, DataSummary } from "./data/dataSource";
export { DataStore, destroyDataStore } from "./data/dataStore";
export type { LocalData } from "./data/examples";
export { filesOfInput, type LabelledPicture, type PickedFile, type PickedSource, readPicked } from "./data/pickedFiles";
export type { LabelledWindow, SourceInfo } from "./data/sources";
export { artifactCost } from "./device/artifactCost";
export { BrowserSurroundings } from "./device/browser";
export { DEFAULT_CHOICES, DeviceConditions, type OwnerChoices } from "./device/conditions";
export { LinkRate } from "./device/linkRate";
export { Measurements } from "./device/measurements";
export { BrowserProfile, suggestedBudgetBytes } from "./device/profile";
export { WakeLock } from "./device/wakeLock";
export { type Enrolment, enrol, enrolledKey, enrolment, forget } from "./identity/enrolment";
export { messageSigner } from "./identity/messageSigner";
export { Trust } from "./identity/trust";
export type { BlobStore } from "./store/blobStore";
export { FileStore, type FileStoreOptions } from "./store/fileStore";
export type { FileEntry, Files } from "./store/files";
export { IndexedDbRecords } from "./store/indexedDbRecords";
export { MemoryRecords, MemoryStore } from "./store/memoryStore";
export { type OpenedStore, openSharedStore, openStore } from "./store/openStore";
export type { Records } from "./store/records";
export type { Progress, Ready, Trained, Trainer, TrainRequest } from "./trainer/trainer";
export { WorkerTrainer } from "./trainer/workerTrainer";
export { InMemoryBroker, InMemoryTransport } from "./transport/inMemory";
export { type LastWill, type MqttOptions, MqttTransport } from "./transport/mqtt";
export type { Transport, TransportEvent } from "./transport/transport";
