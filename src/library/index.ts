/**
 * The parts of a back end: sources of Services, the resolution of Services on this node, and the reconciler that keeps
 * a data plane in that state.
 */
export { type Cidr, cidrOf, contains, formatCidr, hostCidr, parseCidr } from '../base/cidr.ts'
export { type Cancel, type Clock, systemClock } from '../base/clock.ts'
export {
  compareIps,
  FAMILIES,
  type Family,
  familyOf,
  formatIp,
  formatIpPort,
  type Ip,
  parseIp,
} from '../base/ip.ts'
export { createLog, type Log, type LogOptions } from '../base/log.ts'
export { bytesFromOctets, type Octets, octetsFromBytes } from '../base/octets.ts'
export { PersistentMap } from '../base/persistent-map.ts'
export { finish, finishInSlices, type Slicing, type Steps, slicingOf } from '../base/steps.ts'
export type { ApiEndpoint } from '../model/api-server.ts'
export type { CostRates } from '../model/cost.ts'
export type {
  Endpoint,
  EndpointConditions,
  EndpointHints,
  EndpointPort,
  EndpointSlice,
  SliceList,
} from '../model/endpoint.ts'
export type { WatchedIdentity, WatchedKind } from '../model/fields.ts'
export type {
  Backend,
  Frontend,
  FrontendKind,
  FrontendTable,
  NodePortAddresses,
  PortFrontends,
  Route,
  ServiceFrontends,
  WholeAddresses,
} from '../model/frontend.ts'
export type { HealthCheck } from '../model/health-check.ts'
export type { ServiceListeners, TakenPort } from '../model/listeners.ts'
export { createNamePool, type NamePool } from '../model/names.ts'
export type { MemoryLimit, NodePortSelection, ResolveOptions, ServiceMemory } from '../model/node-context.ts'
export type { LeftOut } from '../model/object-budget.ts'
export type { CountedEvent } from '../model/object-parts.ts'
export { type ParseOptions, parseObject, watchedIdentity } from '../model/parse.ts'
export type { Refusal } from '../model/refusal.ts'
export { type Memo, type Resolved, resolve } from '../model/resolve.ts'
export type {
  Headless,
  Protocol,
  Service,
  ServiceDetails,
  ServiceKey,
  ServicePortSpec,
  TrafficPolicy,
} from '../model/service.ts'
export {
  applyEvents,
  applyEventsInSteps,
  EMPTY_SNAPSHOT,
  type NodeInfo,
  type Snapshot,
  type SnapshotEvent,
  type SourceEvent,
} from '../model/snapshot.ts'
export {
  type CommitOptions,
  commitsBetween,
  counterOf,
  type Dataplane,
  type Generation,
  generationOf,
  type KernelRefusal,
  type Observation,
  type Plan,
  type PlanLine,
  type Receipt,
  type RenderOptions,
  type WriterCommit,
} from '../reconcile/dataplane.ts'
export { type DryRunOptions, dryRun } from '../reconcile/dry-run.ts'
export type { PassReason, ReconcilerEvent } from '../reconcile/events.ts'
export type { QuarantineEntry } from '../reconcile/quarantine.ts'
export { Reconciler, type ReconcilerOptions, type ReconcilerStatus } from '../reconcile/reconciler.ts'
export type {
  LocatedRefusal,
  Source,
  SourceHandlers,
  SourceObservation,
  SourceProblem,
  SourceStatus,
} from '../source/source.ts'
export { DEFAULT_RESOLVE_OPTIONS, type RunDataplaneOptions, runDataplane } from './run-dataplane.ts'
export { type FileSourceOptions, fileSource, type KubeSourceOptions, kubeSource } from './sources.ts'
