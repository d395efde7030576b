import type { OverShare } from '../../base/shares.ts'
import { status as statusMessages } from '../schema.ts'
import type { ApiFeed, FeedStatus } from '../state.ts'
import {
  definitions,
  GrpcHealth,
  type GrpcServerOptions,
  reflectionMethod,
  startGrpcServer,
} from './grpc-server.ts'
import { type Call, type CallHandler, type Methods, unary } from './rpc.ts'
import { Sets, type SetsCounts } from './sets.ts'

export interface ApiServerOptions extends Omit<GrpcServerOptions, 'what' | 'methods' | 'requestBytesMax'> {
  readonly feed: ApiFeed
  /** The node whose state is served. */
  readonly nodeName: string
}

export interface ApiServerCounts extends SetsCounts {
  readonly connections: number
  /** Maximum number of calls of all methods. */
  readonly calls: number
  /** Connections and calls beyond the limits, and requests that are no gRPC; since the start. */
  readonly refused: number
}

export interface ApiServer {
  /** The given address, with the port that the kernel chose. */
  readonly address: string
  counts(): ApiServerCounts
  /** Connections that were over their share. */
  readonly overShare: OverShare
  /** Ends every call with UNAVAILABLE, at the latest after 2 s; removes the socket file. Idempotent. */
  close(): Promise<void>
}

const { GetRequest, GetResponse } = statusMessages

/**
 * Serves the newest state of a feed over gRPC: `localv1.Sets`, `kprobe.v1.Status`, health and reflection. Rejects with an
 * Error that names the address when kprobe cannot listen there, or when it needs certificates that were not given.
 */
export async function startApiServer(options: ApiServerOptions): Promise<ApiServer> {
  const { clock, failed, feed, nodeName } = options
  const sets = new Sets({ feed, clock, nodeName, failed })
  const { methods, health } = methodsOf(sets, () => ({ ...feed.status(), nodeName, counts: sets.counts() }))
  const server = await startGrpcServer({ ...options, what: 'the API', methods }).catch(thrown => {
    sets.close()
    throw thrown
  })
  const following = serveHealth(health, feed)
  return {
    address: server.address,
    counts: () => ({ ...sets.counts(), ...server.counts }),
    get overShare() {
      return server.overShare
    },
    async close() {
      following.abort()
      await server.close()
      sets.close()
    },
  }
}

function methodsOf(
  sets: Sets,
  status: Parameters<typeof statusMethod>[0],
): { readonly methods: Methods; readonly health: GrpcHealth } {
  const described = definitions()
  const health = new GrpcHealth(described.services)
  const reflection = reflectionMethod(described)
  const methods: Methods = new Map([
    ['/localv1.Sets/Watch', call => sets.watch(call)],
    ['/kprobe.v1.Status/Get', statusMethod(status)],
    ['/grpc.health.v1.Health/Check', health.check],
    ['/grpc.health.v1.Health/Watch', health.watch],
    ['/grpc.reflection.v1.ServerReflection/ServerReflectionInfo', reflection],
    ['/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo', reflection],
  ])
  return { methods, health }
}

/** Everything is served from the first complete list on. */
function serveHealth(health: GrpcHealth, feed: ApiFeed): AbortController {
  const following = new AbortController()
  health.isServing = feed.current !== undefined
  feed.newer(0, following.signal).then(
    () => {
      health.isServing = true
    },
    () => undefined,
  )
  return following
}

interface ServerStatus extends FeedStatus {
  readonly nodeName: string
  readonly counts: SetsCounts
}

/** `kprobe.v1.Status/Get`. */
function statusMethod(status: () => ServerStatus): (call: Call) => CallHandler {
  return unary(GetRequest, GetResponse, () => {
    const { nodeName, number, services, endpoints, sinceMs, silentMs, counts, ...its } = status()
    return {
      node_name: nodeName,
      number,
      services,
      endpoints,
      since_ms: sinceMs && Math.round(sinceMs),
      silent_ms: silentMs && Math.round(silentMs),
      source_connected: its.sourceConnected,
      trouble: its.trouble,
      streams: counts.streams,
      waiting: counts.waiting,
    }
  })
}
