import { type GrpcServer, type GrpcServerOptions, startGrpcServer } from '../api/grpc/grpc-server.ts'
import { type Call, type Methods, PERMISSION_DENIED, RpcError, unary } from '../api/grpc/rpc.ts'
import { GrpcHealth } from '../api/grpc/standard-services.ts'
import { type DiscoveryCounts, DiscoveryServer } from './discovery-server.ts'
import { status } from './schema.ts'
import type { RelayState } from './state.ts'
import { DELTA_METHOD, HEALTH_METHOD, STATUS_METHOD } from './types.ts'

export interface RelayServerOptions extends Omit<GrpcServerOptions, 'what' | 'methods' | 'requestBytesMax'> {
  readonly state: RelayState
  /** A client could not use what it was sent. */
  readonly rejected?: (text: string) => void
}

export interface RelayServer {
  readonly address: string
  readonly counts: DiscoveryCounts & GrpcServer['counts']
  readonly overShare: GrpcServer['overShare']
  readonly expiresMs: GrpcServer['expiresMs']
  close(): Promise<void>
}

/** The group of the certificates of nodes. */
const NODES_GROUP = 'system:nodes'
/** The name of the certificate of a node, before that of its Node. */
const NODE_PREFIX = 'system:node:'
/** The versions of 10,000 objects, which clients without a token resume by. */
const REQUEST_BYTES_MAX = 1024 * 1024
const SHORT_REQUEST_BYTES_MAX = 4 * 1024
/** A call that asks for nothing holds a place that another reader may need. */
const FIRST_MESSAGE_MS = 30_000
/** A node has four streams at one connection. */
const CONNECTIONS_MAX = 2_048
const CALLS_PER_CONNECTION = 5

/** Methods of a relay: incremental xDS, status and health. A handler of a test calls them without a socket. */
export function relayMethods(
  discovery: DiscoveryServer,
  state: RelayState,
  refuse: (call: Call) => string | undefined = () => undefined,
): { readonly methods: Methods; readonly health: GrpcHealth } {
  const health = new GrpcHealth(['envoy.service.discovery.v3.AggregatedDiscoveryService'])
  const methods: Methods = new Map([
    [DELTA_METHOD, discovery.deltas],
    [
      STATUS_METHOD,
      (call: Call) => {
        const why = refuse(call)
        if (why !== undefined) throw new RpcError(PERMISSION_DENIED, why)
        const answer = unary(status.StatusRequest, status.RelayStatus, () => state.reports.status())
        return { ...answer(call), requestBytesMax: SHORT_REQUEST_BYTES_MAX }
      },
    ],
    [
      HEALTH_METHOD,
      (call: Call) => {
        health.isServing = state.isComplete && !state.isStale
        return { ...health.check(call), requestBytesMax: SHORT_REQUEST_BYTES_MAX }
      },
    ],
  ])
  return { methods, health }
}

/** Serves the state of a relay. Rejects with an Error that names the address when it cannot listen there. */
export async function startRelayServer(options: RelayServerOptions): Promise<RelayServer> {
  const { state, clock, tls, rejected, connectionsMax = CONNECTIONS_MAX } = options
  const discovery = new DiscoveryServer({
    state,
    clock,
    ...(rejected === undefined ? {} : { rejected }),
    ...(tls === undefined ? {} : { refuse: refuseStrangers, nodeOf }),
  })
  const { methods } = relayMethods(discovery, state, tls === undefined ? undefined : refuseStrangers)
  const server = await startGrpcServer({
    ...options,
    what: 'the relay',
    methods,
    connectionsMax,
    callsMax: connectionsMax * CALLS_PER_CONNECTION,
    requestBytesMax: REQUEST_BYTES_MAX,
    firstMessageMs: FIRST_MESSAGE_MS,
  })
  return {
    address: server.address,
    get counts() {
      return { ...server.counts, ...discovery.counts }
    },
    get overShare() {
      return server.overShare
    },
    get expiresMs() {
      return server.expiresMs
    },
    async close() {
      await server.close()
      discovery.close()
    },
  }
}

function refuseStrangers({ organizations }: Call): string | undefined {
  if (organizations.includes(NODES_GROUP)) return undefined
  return `the certificate of the client is not of the group ${NODES_GROUP}`
}

function nodeOf({ commonName }: Call): string | undefined {
  return commonName?.startsWith(NODE_PREFIX) ? commonName.slice(NODE_PREFIX.length) : undefined
}
