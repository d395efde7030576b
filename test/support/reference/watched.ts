import { systemClock } from '../../../src/base/clock.ts'
import { isRefusal, type Refusal } from '../../../src/model/fields.ts'
import { parseObject } from '../../../src/model/parse.ts'
import type { SourceEvent } from '../../../src/model/snapshot.ts'
import { requestPath, watchedResources } from '../../../src/source/kube/api-client.ts'
import { openApiClient } from '../../../src/source/kube/client/http-client.ts'
import { KubeSource } from '../../../src/source/kube/kube-source.ts'
import { acceptFor } from '../../../src/source/kube/wire/encodings.ts'
import type { SourceObservation, SourceProblem } from '../../../src/source/source.ts'
import { eventually, LIMIT_MS } from '../patience.ts'
import type { Api } from './api.ts'

/** What is known of a cluster: model objects, or refusals, by `kind key`. */
export type State = ReadonlyMap<string, unknown>

export interface WatchedOptions {
  readonly kubeconfig: string
  readonly nodeName: string
  /** clientConnection.contentType. */
  readonly contentType?: string
}

const PROTOBUF = 'application/vnd.kubernetes.protobuf'

/** The product's own source on a real API server, with everything it ever said. */
export class Watched {
  readonly state = new Map<string, unknown>()
  readonly problems: SourceProblem[] = []
  readonly observations: SourceObservation[] = []
  /** Keys of objects that went, in order. */
  readonly deleted: string[] = []
  refusals: readonly Refusal[] = []
  synced = false
  events = 0
  readonly #source: KubeSource
  readonly #close: () => Promise<void>

  private constructor(source: KubeSource, close: () => Promise<void>) {
    this.#source = source
    this.#close = close
  }

  static async open({ kubeconfig, nodeName, contentType = PROTOBUF }: WatchedOptions): Promise<Watched> {
    const client = await openApiClient({
      kubeconfig,
      master: '',
      qps: 0,
      burst: 0,
      clock: systemClock,
      env: {},
      warn: () => undefined,
    })
    const source = new KubeSource({
      client,
      clock: systemClock,
      random: Math.random,
      nodeName,
      serviceProxyName: undefined,
      accept: acceptFor(contentType),
    })
    const watched = new Watched(source, async () => {
      await source.stop()
      await client.close()
    })
    await watched.#start()
    return watched
  }

  get status() {
    return this.#source.status
  }

  close(): Promise<void> {
    return this.#close()
  }

  /** Polls until it is so. Gives the milliseconds it took. */
  until(isSo: () => boolean | Promise<boolean>, limitMs = LIMIT_MS): Promise<number> {
    return eventually(isSo, { limitMs, describe: () => JSON.stringify(this.status) })
  }

  #start(): Promise<void> {
    return this.#source.start({
      events: async batch => {
        for (const event of batch) this.#apply(event)
      },
      synced: () => {
        this.synced = true
      },
      refusals: list => {
        this.refusals = list.map(({ refusal }) => refusal)
      },
      problem: problem => this.problems.push(problem),
      observed: observation => this.observations.push(observation),
    })
  }

  #apply(event: SourceEvent): void {
    if (event.kind === 'LocalIps') return
    this.events++
    const key = `${event.kind} ${event.key}`
    if (event.value !== undefined) this.state.set(key, event.value)
    else {
      this.state.delete(key)
      this.deleted.push(key)
    }
  }
}

/** The same by plain lists in JSON: what the source should know now, and which objects it should refuse. */
export async function listedState(
  api: Api,
  nodeName: string,
): Promise<{ readonly state: State; readonly refusals: readonly Refusal[] }> {
  const state = new Map<string, unknown>()
  const refusals: Refusal[] = []
  for (const resource of watchedResources({ nodeName, serviceProxyName: undefined })) {
    for (const object of await api.listAt(
      requestPath(resource, {}),
      apiVersionOf(resource.path),
      resource.kind,
    )) {
      const parsed = parseObject(object)
      if (parsed === undefined || (!isRefusal(parsed) && parsed.kind === 'LocalIps')) continue
      if (isRefusal(parsed)) refusals.push(parsed)
      else if (parsed.value !== undefined) state.set(`${parsed.kind} ${parsed.key}`, parsed.value)
    }
  }
  return { state, refusals }
}

function apiVersionOf(path: string): string {
  return path.replace(/^\/apis?\//, '').replace(/\/[^/]+$/, '')
}
