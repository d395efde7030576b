/**
 * The parts of a back end: sources of Services, the resolution of Services on this node, and the reconciler that keeps
 * a data plane in that state.
 */
export {
  type Cancel,
  type Clock,
  finish,
  finishInSlices,
  type Slicing,
  type Steps,
  slicingOf,
  systemClock,
} from '../base/clock.ts'
export { PersistentMap } from '../base/collections.ts'
export {
  type Cidr,
  cidrOf,
  compareIps,
  contains,
  FAMILIES,
  type Family,
  familyOf,
  formatCidr,
  formatIp,
  formatIpPort,
  hostCidr,
  type Ip,
  parseCidr,
  parseIp,
} from '../base/ip.ts'
export { createLog, type Log, type LogOptions } from '../base/log.ts'
export { bytesFromOctets, type Octets, octetsFromBytes } from '../base/octets.ts'
export type { Refusal, WatchedIdentity, WatchedKind } from '../model/fields.ts'
export type * from '../model/frontend.ts'
export type { NodePortSelection, ResolveOptions, ServiceMemory } from '../model/node-context.ts'
export { type ParseOptions, parseObject, watchedIdentity } from '../model/parse.ts'
export type { ApiEndpoint, ServiceListeners, TakenPort } from '../model/reserved.ts'
export { type Memo, type Resolved, resolve } from '../model/resolve.ts'
export type * from '../model/service.ts'
export {
  applyEvents,
  EMPTY_SNAPSHOT,
  type NodeInfo,
  type Snapshot,
  type SnapshotEvent,
  type SourceEvent,
  ValuePool,
} from '../model/snapshot.ts'
export {
  type CommitOptions,
  commitsBetween,
  counterOf,
  type Dataplane,
  type DryRunOptions,
  dryRun,
  type Generation,
  type GenerationWatch,
  generationOf,
  type KernelRefusal,
  type Observation,
  type ObserveOptions,
  type Plan,
  type PlanLine,
  type Receipt,
  type RenderOptions,
  type WriterCommit,
} from '../reconcile/dataplane.ts'
export type { PassReason, ReconcilerEvent } from '../reconcile/pass.ts'
export type { FailedFamily, QuarantineEntry } from '../reconcile/quarantine.ts'
export {
  type Held,
  Reconciler,
  type ReconcilerOptions,
  type ReconcilerStatus,
} from '../reconcile/reconciler.ts'
export type {
  LocatedRefusal,
  Source,
  SourceHandlers,
  SourceObservation,
  SourceProblem,
  SourceStatus,
} from '../source/source.ts'
export { DEFAULT_RESOLVE_OPTIONS, type RunDataplaneOptions, runDataplane } from './run-dataplane.ts'
export {
  type FileSourceOptions,
  fileSource,
  type KubeSourceOptions,
  kubeSource,
  type NodeOfProxy,
} from './sources.ts'
