import { finish } from '../../src/base/clock.ts'
import { PersistentMap } from '../../src/base/collections.ts'
import { DEFAULT_RESOLVE_OPTIONS } from '../../src/library/index.ts'
import type { FrontendTable, PortFrontends, ServiceFrontends } from '../../src/model/frontend.ts'
import { type Memo, resolve } from '../../src/model/resolve.ts'
import { EMPTY_SNAPSHOT, type Snapshot } from '../../src/model/snapshot.ts'

/** Of a table that no resolve has made. */
export const NO_MEMO: Memo = finish(
  resolve({ ...DEFAULT_RESOLVE_OPTIONS, nodeName: 'node' }, undefined, EMPTY_SNAPSHOT),
).memo

/** A table in which each Service has one port; the value tells versions of a Service apart. */
export function tableOf(number: number, services: Readonly<Record<string, string>>): FrontendTable {
  return {
    number,
    services: PersistentMap.from(
      Object.entries(services).map(([key, text]) => [key, serviceOf(key, text)] as const),
    ),
    localBackends: PersistentMap.empty(),
    nodePorts: { IPv4: { kind: 'all' }, IPv6: { kind: 'all' } },
    serviceCidrs: [],
    localIps: [],
    node: { ips: [], podCidrs: [] },
  }
}

function serviceOf(service: string, displayName: string): ServiceFrontends {
  const port: PortFrontends = {
    key: `${service}:${displayName}/TCP/IPv4`,
    displayName,
    service,
    family: 'IPv4',
    protocol: 'TCP',
    affinityTimeoutS: 0,
    scheduler: undefined,
    frontends: [],
    cluster: [],
    local: [],
  }
  return { service, clusterIps: [], ports: [port], refusals: [] }
}

export function snapshotOf(number: number): Snapshot {
  return { ...EMPTY_SNAPSHOT, number }
}
