import {
  GrpcHealth,
  type GrpcServer,
  type GrpcServerOptions,
  startGrpcServer,
} from '../api/grpc/grpc-server.ts'
import {
  type Call,
  type CallHandler,
  INVALID_ARGUMENT,
  type Method,
  type Methods,
  PERMISSION_DENIED,
  RpcError,
} from '../api/grpc/rpc.ts'
import { localv1 } from '../api/schema.ts'
import type { Clock } from '../base/clock.ts'
import { isDnsSubdomain } from '../model/fields.ts'
import { decodeMessage } from '../wire/protobuf/decoder.ts'
import type { TokenReviews, TokenVerdict } from './admission.ts'
import { type DiscoveryCounts, DiscoveryServer } from './discovery-server.ts'
import type { RelayState } from './state.ts'
import { StatusAnswers } from './status.ts'
import { DELTA_METHOD, HEALTH_METHOD, SETS_METHOD, STATUS_METHOD } from './types.ts'

export interface RelayServerOptions extends Omit<GrpcServerOptions, 'what' | 'methods'> {
  readonly state: RelayState
  /** A client could not use what it was sent. */
  readonly rejected?: ((text: string) => void) | undefined
  /** Clients without a certificate of a node show a token, wherever the relay listens. */
  readonly tokens?: TokenReviews | undefined
  /** A client was refused for what it is. */
  readonly unauthorized?: (why: string) => void
  /** Users that may speak for any node: names of certificates, or of ServiceAccounts. */
  readonly trustedUsers?: readonly string[]
  /** Begins a stream of `localv1.Sets/Watch` for a node; absent where that is not served. */
  readonly sets?: NodeSetsOptions['watch'] | undefined
}

export interface RelayServer {
  readonly address: string
  readonly counts: DiscoveryCounts & GrpcServer['counts'] & { readonly unauthorized: number }
  readonly overShare: GrpcServer['overShare']
  readonly expiresMs: GrpcServer['expiresMs']
  close(): Promise<void>
}

const NODES_GROUP = 'system:nodes'
/** The name of the certificate of a node, before that of its Node. */
const NODE_PREFIX = 'system:node:'
const CALLS_PER_CONNECTION = 5

/** Methods of a relay: incremental xDS, status and health. A handler of a test calls them without a socket. */
export function relayMethods(
  discovery: DiscoveryServer,
  state: RelayState,
  clock: Clock,
): { readonly methods: Methods; readonly health: GrpcHealth } {
  const statusAnswers = new StatusAnswers(clock, () => state.reports.status())
  const health = new GrpcHealth(['envoy.service.discovery.v3.AggregatedDiscoveryService'])
  const methods: Methods = new Map([
    [DELTA_METHOD, discovery.deltas],
    [STATUS_METHOD, statusAnswers.answer],
    [
      HEALTH_METHOD,
      call => {
        health.isServing = state.isComplete && !state.isStale
        return health.check(call)
      },
    ],
  ])
  return { methods, health }
}

/** Serves the state of a relay. Rejects with an Error that names the address when it cannot listen there. */
export async function startRelayServer(options: RelayServerOptions): Promise<RelayServer> {
  const { state, clock, tls, tokens, rejected, sets, connectionsMax = 2_048 } = options
  const isOpen = tls === undefined && tokens === undefined
  const verdicts = new WeakMap<Call, TokenVerdict>()
  const nodeOf = (call: Call): string | undefined =>
    isNode(call) ? nodeOfCertificate(call) : verdicts.get(call)?.node
  const trusted = new Set(options.trustedUsers)
  const userOf = (call: Call): string => (isNode(call) ? call.commonName : verdicts.get(call)?.user) ?? ''
  const trustedAs = (call: Call) => [userOf(call)].find(user => isOpen || trusted.has(user))
  const isTrusted = (call: Call): boolean => trustedAs(call) !== undefined
  const discovery = new DiscoveryServer({
    state,
    clock,
    nodeOf,
    trustedAs,
    rejected,
  })
  let unauthorized = 0
  const admit = async (call: Call): Promise<RpcError | undefined> => {
    const verdict = tokens === undefined ? STRANGER : await tokens.check(call)
    const { refusal } = verdict
    verdicts.set(call, verdict)
    if (refusal !== undefined) {
      unauthorized++
      options.unauthorized?.(refusal.message)
    }
    return refusal
  }
  const { methods } = relayMethods(discovery, state, clock)
  const setsMethod = sets && nodeSets({ watch: sets, nodeOf, isTrusted })
  const server = await startGrpcServer({
    ...options,
    tls: tls && { ...tls, takesTokens: tokens !== undefined },
    what: 'the relay',
    methods: setsMethod === undefined ? methods : new Map([...methods, [SETS_METHOD, setsMethod]]),
    admit: (call, path) => (path === HEALTH_METHOD || isOpen || isNode(call) ? undefined : admit(call)),
    connectionsMax,
    callsMax: connectionsMax * CALLS_PER_CONNECTION,
    // A call without a request occupies a place that another reader may need.
    firstMessageMs: 30_000,
  })
  return {
    address: server.address,
    get counts() {
      return { ...server.counts, ...discovery.counts, unauthorized }
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

const STRANGER: TokenVerdict = {
  refusal: new RpcError(
    PERMISSION_DENIED,
    `the certificate of the client is not of the group ${NODES_GROUP}`,
  ),
  node: undefined,
  user: undefined,
}

function isNode({ organizations }: Call): boolean {
  return organizations.includes(NODES_GROUP)
}

function nodeOfCertificate({ commonName }: Call): string | undefined {
  return commonName?.startsWith(NODE_PREFIX) ? commonName.slice(NODE_PREFIX.length) : undefined
}

interface NodeSetsOptions {
  /** Begins a stream of `localv1.Sets/Watch` for a node. Throws RpcError where there is no room. */
  readonly watch: (node: string, call: Call) => CallHandler
  /** The Node that this client is; undefined for one that is none. */
  readonly nodeOf: (call: Call) => string | undefined
  /** The client may request any node. */
  readonly isTrusted: (call: Call) => boolean
}

/** `localv1.Sets/Watch` for the node that the first request of a stream names, or else for that of the client. */
export function nodeSets({ watch, nodeOf, isTrusted }: NodeSetsOptions): Method {
  return call => {
    let handler: CallHandler | undefined
    const begin = (bytes: Buffer): CallHandler => {
      const own = nodeOf(call) ?? ''
      const { NodeName: asked = '' } = decodeMessage(localv1.WatchReq, bytes)
      const node = asked === '' ? own : asked.toLowerCase()
      if (!isDnsSubdomain(node))
        throw new RpcError(
          INVALID_ARGUMENT,
          `NodeName ${JSON.stringify(node.slice(0, 253))} is not a node name`,
        )
      if (node !== own && !isTrusted(call))
        throw new RpcError(
          PERMISSION_DENIED,
          `the client may request node ${JSON.stringify(own)} only: NodeName ${JSON.stringify(node)}; --trusted-users`,
        )
      return watch(node, call)
    }
    return {
      message(bytes) {
        handler ??= begin(bytes)
        handler.message(bytes)
      },
      ended: () => (handler === undefined ? call.end(INVALID_ARGUMENT, 'no request') : handler.ended()),
      drained: () => handler?.drained?.(),
      closed: () => handler?.closed?.(),
    }
  }
}
