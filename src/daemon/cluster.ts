import { buildInfo } from '../base/build-info.ts'
import type { Clock } from '../base/clock.ts'
import { errorText } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import type { Config } from '../config/config.ts'
import { isJson } from '../model/fields.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import type { QuarantineEntry } from '../reconcile/quarantine.ts'
import {
  type ApiClient,
  ApiError,
  type ApiRequest,
  type ApiResponse,
  type CredentialsEnd,
  collect,
} from '../source/kube/api-client.ts'
import { dependsOnServices } from '../source/kube/client/server-address.ts'
import { failureOfStatus } from '../source/kube/failure.ts'
import { KubeSource, type KubeSourceOptions } from '../source/kube/kube-source.ts'
import { acceptFor, readStatus } from '../source/kube/wire/encodings.ts'
import type { KernelState, LocatedRefusal, Revisions } from '../source/source.ts'
import type { EventWrite } from '../telemetry/event.ts'
import { EventRecorder, type PostResult } from '../telemetry/events.ts'
import type { Intake } from './intake.ts'
import type { DaemonIo } from './io.ts'
import type { StateOwner } from './saved/state-file.ts'

interface ClusterOptions {
  readonly client: ApiClient
  readonly clock: Clock
  readonly random: () => number
  /** Called for each request after its answer or failure. */
  readonly requested: (request: {
    readonly method: string
    readonly host: string
    readonly status: number | undefined
    readonly durationMs: number
  }) => void
  /** Settings of the reports to relays about the kernel; absent where nothing is programmed. */
  readonly reported?: Omit<ConstructorParameters<typeof KernelReport>[0], 'report'> | undefined
}

export interface ApiQuestion {
  readonly method: 'GET' | 'PATCH'
  readonly path: string
  readonly body?: unknown
  readonly contentType?: string
}

interface Sent extends Pick<ApiRequest, 'method' | 'path' | 'contentType'> {
  readonly body?: unknown
  readonly accept?: string
}

export type ApiAnswer =
  | { readonly kind: 'taken'; readonly value: unknown }
  /** `text` is the reason; the server's own message where it has answered. */
  | { readonly kind: 'failed'; readonly text: string }

/** The API server of the cluster: the source, and the receiver of events. */
export class Cluster {
  readonly #options: ClusterOptions
  readonly #client: ApiClient
  readonly #stop = new AbortController()
  readonly #report: KernelReport | undefined
  #isForbidden = false

  constructor(options: ClusterOptions) {
    this.#options = options
    this.#client = counting(options)
    const { client, reported } = options
    if (client.report !== undefined && reported !== undefined)
      this.#report = new KernelReport({ ...reported, report: state => client.report?.(state) })
  }

  get server(): string {
    return this.#client.server
  }

  source(
    { nodeName, serviceProxyName, client }: Pick<Config, 'nodeName' | 'serviceProxyName' | 'client'>,
    reading: Pick<KubeSourceOptions, 'details' | 'partsMax'> = {},
  ): KubeSource {
    const { clock, random } = this.#options
    const report = this.#report
    const accept = acceptFor(client.contentType, client.acceptContentTypes)
    return new KubeSource({
      client: this.#client,
      clock,
      random,
      nodeName,
      serviceProxyName,
      accept,
      ...reading,
      ...(report === undefined ? {} : { reached: revisions => report.reached(revisions) }),
    })
  }

  takeEvent(event: ReconcilerEvent): void {
    this.#report?.take(event)
  }

  /** Gives the owner of the objects of this cluster. Throws ApiError 'credentials'. */
  async owner({
    nodeName,
    serviceProxyName,
  }: Pick<Config, 'nodeName' | 'serviceProxyName'>): Promise<StateOwner> {
    const authorities = (await this.#options.client.authorities?.()) ?? []
    return { node: nodeName, proxy: serviceProxyName ?? '', server: this.server, authorities }
  }

  /** Gives when the credentials expire; undefined where they cannot be read, which the log reports. */
  async credentialsEnd(): Promise<CredentialsEnd | undefined> {
    return await this.#options.client.credentialsEnd?.().catch(() => undefined)
  }

  /**
   * Warns if the API server is reached through a Service of this proxy: the proxy could not start on an empty kernel
   * (F97).
   */
  warnOfLoop({ services }: FrontendTable, log: Log): void {
    const clusterIps = services.values().flatMap(service => service.clusterIps)
    if (!dependsOnServices(hostNameOf(this.server), clusterIps)) return
    const advice =
      'after a reboot nothing serves that address; use a kubeconfig with the address of the API server itself'
    log.warn({ server: this.server }, `the API server address is a Service that kprobe serves: ${advice}`)
  }

  /** Reads the names of a few Nodes for a log message. Throws ApiError, or SyntaxError if the answer is not a list. */
  async nodeNames(): Promise<readonly string[]> {
    const path = `/api/v1/nodes?limit=3`
    const accept = 'application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json'
    const response = await this.#send({ method: 'GET', path, accept })
    const list: unknown = JSON.parse(await textOf(response))
    const items = isJson(list) && Array.isArray(list.items) ? list.items : []
    return items.flatMap(item => (isJson(item) && isJson(item.metadata) ? [String(item.metadata.name)] : []))
  }

  /** Reads or changes one object. Never rejects: the caller may send it again. */
  async ask(question: ApiQuestion): Promise<ApiAnswer> {
    try {
      const response = await this.#send(question)
      const text = await textOf(response)
      if (response.status >= 200 && response.status < 300) return { kind: 'taken', value: JSON.parse(text) }
      const status = readStatus(response.contentType, Buffer.from(text))
      return { kind: 'failed', text: failureOfStatus(response.status, status).text }
    } catch (err) {
      if (!(err instanceof ApiError) && !(err instanceof SyntaxError)) throw err
      return { kind: 'failed', text: err.message }
    }
  }

  /** Sends an event. Never rejects: the caller may send a failed event again. */
  async post(write: EventWrite, log: Log): Promise<PostResult> {
    try {
      const response = await this.#send({ method: 'POST', ...write })
      if (response.status === 403) await this.#forbid(response, log)
      else await drain(response)
      const result = resultOf(response.status)
      if (result === 'taken') this.#isForbidden = false
      return result
    } catch (err) {
      if (!(err instanceof ApiError)) throw err
      log.debug({ err }, 'cannot send event; retrying')
      return 'retry'
    }
  }

  async #send({ body, ...request }: Sent): Promise<ApiResponse> {
    return await this.#client.send({
      accept: 'application/json',
      ...request,
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      // The answer to a small request, and each piece of it, comes within 10 s; otherwise it is sent again.
      idleMs: 10_000,
      longLived: false,
      signal: this.#stop.signal,
    })
  }

  /** Logs the warning once, and again only if the server has accepted an event in between. */
  async #forbid(response: ApiResponse, log: Log): Promise<void> {
    const status = readStatus(response.contentType, Buffer.from(await textOf(response)))
    if (this.#isForbidden) return
    this.#isForbidden = true
    const { text } = failureOfStatus(response.status, status)
    log.warn(`cannot write events: ${text}; the daemon continues without them`)
  }

  async close(): Promise<void> {
    this.#stop.abort()
    await this.#client.close()
  }
}

/** Makes the recorder of events about this node. */
export function recorderOf(
  { nodeName }: Config,
  io: Pick<DaemonIo, 'clock' | 'log' | 'wallMs' | 'random'>,
  { intake, cluster }: { readonly intake: Intake; readonly cluster: () => Cluster | undefined },
): EventRecorder {
  const { log } = io
  return new EventRecorder({
    ...io,
    nodeName,
    uidOf: service => intake.snapshot.services.get(service)?.uid ?? '',
    post: async write => (await cluster()?.post(write, log)) ?? 'retry',
    lost: (why, regarding, reason) => log.debug({ why, regarding, reason }, 'event not delivered'),
  })
}

function resultOf(status: number): PostResult {
  if ((status >= 200 && status < 300) || status === 409) return 'taken'
  return status === 429 || status >= 500 ? 'retry' : 'refused'
}

async function textOf(response: ApiResponse): Promise<string> {
  // Three whole Nodes, from a server that does not send metadata alone: a Node may list hundreds of images.
  const body = await collect(response, 4 << 20)
  if (body === undefined) throw new ApiError('protocol', 'the answer is too long')
  return body.toString()
}

async function drain({ body }: ApiResponse): Promise<void> {
  const chunks = body[Symbol.asyncIterator]()
  for (let next = await chunks.next(); next.done !== true; next = await chunks.next());
}

function counting({ client, clock, requested }: ClusterOptions): ApiClient {
  const host = hostOf(client.server)
  return {
    server: client.server,
    get isDirect() {
      return client.isDirect
    },
    close: () => client.close(),
    async send(request) {
      const beganMs = clock.nowMs()
      const done = (status: number | undefined) =>
        requested({ method: request.method, host, status, durationMs: clock.nowMs() - beganMs })
      try {
        const response = await client.send(request)
        done(response.status)
        return response
      } catch (error) {
        done(undefined)
        throw error
      }
    },
  }
}

function hostNameOf(server: string): string {
  return URL.canParse(server) ? new URL(server).hostname.replace(/^\[|\]$/g, '') : server
}

function hostOf(server: string): string {
  return URL.canParse(server) ? new URL(server).host : server
}

interface KernelReportOptions {
  readonly intake: {
    readonly complete: boolean
    readonly snapshot: Snapshot
    readonly refused: readonly LocatedRefusal[]
    isStale(snapshot: Snapshot): boolean
  }
  readonly quarantined: () => readonly Pick<QuarantineEntry, 'service' | 'error'>[]
  readonly proof: () => KernelState['proof']
  readonly report: (state: KernelState) => void
}

/** Revisions that are in every Snapshot from this number on. */
interface Reached {
  readonly revisions: Revisions
  readonly number: number
}

/** Snapshots that the kernel does not hold yet; of more, the newer ones count as one. */
const REACHED_MAX = 64

/** Follows which revisions the kernel holds: those that were in a Snapshot before the sync that ended with it. */
export class KernelReport {
  readonly #options: KernelReportOptions
  #reached: readonly Reached[] = []
  #synced = -1
  #held: Revisions | undefined
  #failure = ''

  constructor(options: KernelReportOptions) {
    this.#options = options
  }

  /** All changes up to these revisions are in the newest Snapshot. */
  reached(revisions: Revisions): void {
    const { intake } = this.#options
    const { number } = intake.snapshot
    // Objects of a saved state are of no revision, and those of a source that is not complete are in no Snapshot.
    if (!intake.complete || intake.isStale(intake.snapshot)) return
    const before = this.#reached.filter(its => its.number < number)
    this.#reached = [...before.slice(0, REACHED_MAX - 1), { revisions, number }]
    if (this.#advance()) this.#report()
  }

  take(event: ReconcilerEvent): void {
    if (event.kind === 'synced') {
      this.#synced = event.number
      this.#failure = ''
      this.#advance()
    } else if (event.kind === 'failed') this.#failure = errorText(event.error)
    else if (event.kind !== 'quarantined' && event.kind !== 'released') return
    this.#report()
  }

  #advance(): boolean {
    const held = this.#reached.findLast(({ number }) => number <= this.#synced)
    if (held === undefined) return false
    this.#held = held.revisions
    this.#reached = this.#reached.filter(({ number }) => number > this.#synced)
    return true
  }

  #report(): void {
    const { intake, proof, report } = this.#options
    const quarantined = this.#options.quarantined()
    const refused = intake.refused
    // A report names eight, as many as LACKING_MAX in its reader, and counts all.
    report({
      held: this.#held,
      failure: this.#failure,
      lacking: [
        ...quarantined.slice(0, 8).map(({ service, error }) => ({ service, reason: errorText(error) })),
        ...refused.slice(0, 8).map(({ refusal: { service, object, field, reason } }) => ({
          service: service ?? object.replace(/^Service /, ''),
          reason: `${field}: ${reason}`,
        })),
      ].slice(0, 8),
      lackingCount: quarantined.length + refused.length,
      proof: proof(),
      version: buildInfo().version,
    })
  }
}
