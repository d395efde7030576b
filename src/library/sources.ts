import { type Clock, systemClock } from '../base/clock.ts'
import { Cluster } from '../daemon/cluster.ts'
import { openClient, openFileSource } from '../daemon/open.ts'
import type { Source } from '../source/source.ts'

export interface NodeOfProxy {
  /** Name of this node's Node object; sources deliver no other. */
  readonly nodeName: string
  /** Selects Services with this value of service.kubernetes.io/service-proxy-name; if unset, those without the label. */
  readonly serviceProxyName?: string | undefined
  readonly clock?: Clock
}

export interface FileSourceOptions extends NodeOfProxy {
  /** A file, or a folder of *.yaml, *.yml and *.json: objects of kind Service, EndpointSlice, ServiceCIDR and Node. */
  readonly path: string
}

/** Makes a source of Services from files, and follows these. An invalid or missing file keeps its last valid content in use. */
export function fileSource(options: FileSourceOptions): Source {
  const { path, nodeName, serviceProxyName, clock = systemClock } = options
  const source = { kind: 'file', path } as const
  return openFileSource({ source, nodeName: nodeName.toLowerCase(), serviceProxyName }, clock)
}

export interface KubeSourceOptions extends NodeOfProxy {
  /** Path of a kubeconfig; if unset, the credentials of the pod of this process. */
  readonly kubeconfig?: string
  /** URL that replaces the kubeconfig's server. */
  readonly master?: string
  /** Requests per second on average, 0 for no limit; `burst` is the number at once after an idle time. */
  readonly qps?: number
  readonly burst?: number
  /** Gets messages for operators, one sentence at a time; they contain no secret. */
  readonly warn?: (text: string) => void
}

/** The defaults of kube-proxy's clientConnection. */
const CLIENT = {
  contentType: 'application/vnd.kubernetes.protobuf',
  acceptContentTypes: '',
  qps: 5,
  burst: 10,
} as const

/**
 * Makes a source of Services, EndpointSlices, ServiceCIDRs and this Node from the API server: it lists, then watches.
 * An outage changes nothing. `start` throws ApiError 'credentials' if the kubeconfig cannot be used.
 */
export function kubeSource(options: KubeSourceOptions): Source {
  const {
    clock = systemClock,
    kubeconfig = '',
    master = '',
    serviceProxyName,
    warn = () => undefined,
  } = options
  const { qps = CLIENT.qps, burst = CLIENT.burst } = options
  const client = { ...CLIENT, kubeconfig, master, qps, burst }
  const nodeName = options.nodeName.toLowerCase()
  let cluster: Cluster | undefined
  let source: Source | undefined
  return {
    async start(handlers) {
      const opened = await openClient({ client }, { clock, env: process.env, warn })
      cluster = new Cluster({ client: opened, clock, random: Math.random, requested: () => undefined })
      source = cluster.source({ nodeName, serviceProxyName, client })
      await source.start(handlers)
    },
    async stop() {
      await source?.stop()
      await cluster?.close()
    },
    get status() {
      return source?.status ?? { missing: ['a connection'], heardMs: undefined, trouble: undefined }
    },
  }
}
