import { type Clock, restMs } from '../../base/clock.ts'
import { failureText } from '../../base/errors.ts'
import { fieldOf } from '../../base/plain-data.ts'
import { quote } from '../../config/flag.ts'
import { defaultAdminSocket } from '../../config/own-flags.ts'
import { HERE } from '../../daemon/open.ts'
import {
  droppedMessages,
  type FlowEventKind,
  type FlowEvents,
  watchFlowEvents,
} from '../../kernel/conntrack/record.ts'
import { settingNow } from '../../kernel/sysctl/sysctls.ts'
import type { PodNames } from '../../model/pod-names.ts'
import {
  type FlowDestination,
  namesIn,
  noted,
  type ServiceNames,
  serviceOfFlow,
} from '../../modes/common/service-names.ts'
import { isOfService, type ServiceRow, UNNAMED } from '../../modes/common/show.ts'
import { NFT_FAMILIES } from '../../modes/common/tables.ts'
import { readModes } from '../../modes/registry.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { NETLINK_NETFILTER } from '../../netlink/constants.ts'
import type { Message } from '../../netlink/message.ts'
import { openNetlink } from '../../netlink/native.ts'
import type { Transport } from '../../netlink/transport.ts'
import { askDaemon, askPods, serviceNames, servicesIn } from '../admin-client.ts'
import { checkDaemon } from '../model-request.ts'
import { hintAt } from '../peers.ts'
import { notHeldText } from './packet-request.ts'

interface FlowNamesOptions {
  readonly clock: Clock
  /** The given --admin-socket; empty for the default one. */
  readonly adminSocket: string
  readonly proxyName: string | undefined
}

const REST_MS_MIN = 2_000
/** No daemon announces that these names changed. */
const KERNEL_REST_MS_MIN = 10_000

/**
 * Gives the Service of a connection by its original destination. The names are those of the daemon, or of the rules in
 * the kernel where no daemon answers, and follow changes.
 */
export class FlowNames {
  readonly #options: FlowNamesOptions
  /** The socket of the daemon; undefined where the names come from the kernel. */
  readonly socket: string | undefined
  /** A notice for the user about the origin of the names. */
  readonly notice: string | undefined
  #names: ServiceNames = namesIn(noted(), false)
  #pods: PodNames = () => undefined
  /** What the kernel serves, where the names come from there. */
  #rows: readonly ServiceRow[] = []
  #version = 0
  #readAt: { readonly synced: unknown; readonly dueMs: number } | undefined

  private constructor(options: FlowNamesOptions, socket: string | undefined, notice?: string) {
    this.#options = options
    this.socket = socket
    this.notice = notice
  }

  /**
   * Finds the daemon and reads the names. Throws when no daemon of this version answers at a given socket, and when the
   * rules in the kernel cannot be read.
   */
  static async open(options: FlowNamesOptions): Promise<FlowNames> {
    const { adminSocket, proxyName } = options
    const socket = adminSocket || defaultAdminSocket(proxyName)
    let why: string | undefined
    try {
      if ((await checkDaemon(socket, { otherwise: false })) === undefined)
        throw new Error(`no daemon answers at ${socket}`)
    } catch (error) {
      if (adminSocket !== '') throw error
      why = `${failureText(error)}; names of Services come from the rules in the kernel`
    }
    const names = new FlowNames(options, why === undefined ? socket : undefined, why)
    await names.#read(undefined)
    return names
  }

  get version(): number {
    return this.#version
  }

  /** Gives `namespace/name:port`; undefined for a destination of no Service. */
  serviceOf(destination: FlowDestination, isTranslated: boolean): string | undefined {
    return serviceOfFlow(this.#names, destination, isTranslated)
  }

  /** Gives the Pod, `namespace/name`, at `ADDRESS:PORT`; undefined without a daemon. */
  podAt(endpoint: string | undefined): string | undefined {
    return endpoint === undefined ? undefined : this.#pods(endpoint)
  }

  /** Says that there is no Service `namespace/name`, or none of `namespace/`; nothing for an empty text, and where names are unknown. */
  async noticesAbout(service: string): Promise<readonly string[]> {
    if (service === '') return []
    if (this.socket === undefined) {
      const isKnown = this.#rows.every(row => row.service !== UNNAMED && !isOfService([row.service], service))
      return isKnown ? [notHeldText(this.#rows, service)] : []
    }
    const services = await askDaemon(this.socket, '/services')
    const known = Array.isArray(services) ? services.map(String) : undefined
    if (known === undefined || isOfService(known, service)) return []
    if (service.endsWith('/')) return [`the daemon has no Service of the namespace ${service.slice(0, -1)}`]
    return [`the daemon has no Service ${quote(service)}${hintAt(service, known)}`]
  }

  /** Throws where there is no such Service, and where the namespace has none. */
  async require(service: string): Promise<void> {
    const [notice] = await this.noticesAbout(service)
    if (notice !== undefined) throw new Error(notice)
  }

  /**
   * Reads the names again if they may have changed: if the daemon has synced another snapshot. Rests after each
   * read in proportion to the time it took. `synced` comes from the daemon's page /status.
   */
  async refresh(synced: unknown): Promise<void> {
    const nowMs = this.#options.clock.nowMs()
    if (this.#readAt !== undefined && nowMs < this.#readAt.dueMs) return
    if (this.socket !== undefined && (synced === undefined || this.#readAt?.synced === synced)) return
    await this.#read(synced)
  }

  async #read(synced: unknown): Promise<void> {
    const { clock } = this.#options
    const startMs = clock.nowMs()
    const read = this.socket === undefined ? await this.#fromKernel() : await namesOfDaemon(this.socket)
    const endMs = clock.nowMs()
    const minMs = this.socket === undefined ? KERNEL_REST_MS_MIN : REST_MS_MIN
    if (read !== undefined) {
      this.#names = read.names
      this.#pods = read.pods
      this.#version++
    }
    // The part of the time that reading names may take, so that a large cluster does not cost a watcher a processor.
    const dueMs = endMs + restMs(endMs - startMs, { share: 0.005, minMs })
    this.#readAt = { synced: read?.synced ?? synced, dueMs }
  }

  async #fromKernel() {
    const { proxyName } = this.#options
    const { held } = await readModes({ ...HERE, families: NFT_FAMILIES, proxyName })
    this.#rows = held.flatMap(({ rows }) => rows)
    return { names: namesOfRows(this.#rows), pods: () => undefined, synced: undefined }
  }
}

async function namesOfDaemon(socket: string) {
  const state = await askDaemon(socket, '/state')
  if (state === undefined) return undefined
  const names = serviceNames(servicesIn(state, socket))
  return { names, pods: await askPods(socket), synced: fieldOf(state, 'synced') }
}

export function namesOfRows(
  rows: readonly Pick<ServiceRow, 'service' | 'protocol' | 'frontend'>[],
): ServiceNames {
  const found = noted()
  for (const { service, protocol, frontend } of rows)
    found.places.set(`${protocol} ${frontend.replace(/^(?:\*|\[\*\]):/, ':')}`, service)
  return namesIn(found, false)
}

/** The kernel's records about connections in this network namespace. */
export interface FlowSettings {
  readonly hasVolume: boolean
  /** The reason for which it does not report connections that begin and end; undefined where it does. */
  readonly whyNoEvents: string | undefined
  /** Says what it does not record, and why. */
  readonly notices: readonly string[]
}

const SETTINGS = '/proc/sys/net/netfilter/nf_conntrack_'

export function readFlowSettings(setting: (path: string) => number | undefined = settingNow): FlowSettings {
  const [volume, times, events] = ['acct', 'timestamp', 'events'].map(name => setting(SETTINGS + name))
  // If all settings are missing, this namespace hides them, or conntrack is not loaded yet.
  const isBuiltWithout = events === undefined && (volume ?? times) !== undefined
  const why = (name: string, value: number | undefined) =>
    value === undefined ? `${NAMES}${name} is not there` : `${NAMES}${name} is ${value}`
  return {
    hasVolume: volume === 1,
    whyNoEvents: isBuiltWithout ? BUILT_WITHOUT : events === 0 ? SWITCHED_OFF : undefined,
    notices: [
      ...(volume === 1 ? [] : [`no bytes and packets: ${why('acct', volume)}`]),
      ...(times === 1 ? [] : [`no times: ${why('timestamp', times)}`]),
    ],
  }
}

const NAMES = 'net.netfilter.nf_conntrack_'
const SWITCHED_OFF = `the kernel reports no connections: ${NAMES}events is 0; set it to 1 or 2`
const BUILT_WITHOUT = 'the kernel reports no connections: it was built without CONFIG_NF_CONNTRACK_EVENTS'

function openEventSocket(): Transport {
  // Bursts of 20,000 events and more wait here; the kernel gives less to a process that may not force it.
  return openNetlink({ protocol: NETLINK_NETFILTER, receiveBufferBytes: 32 << 20 })
}

interface FlowWatchOptions {
  readonly clock: Clock
  readonly kinds: readonly FlowEventKind[]
  readonly take: (kind: FlowEventKind, view: ByteView, message: Message) => void
  readonly open?: () => Transport
  readonly dropped?: (portId: number) => number | undefined
}

/** Connections that begin and end, as the kernel reports them, and how many reports were lost. */
export class FlowWatch {
  readonly #transport: Transport
  readonly #events: FlowEvents
  readonly #dropped: (portId: number) => number | undefined
  #overruns = 0
  #counted = 0

  constructor({ clock, kinds, take, open = openEventSocket, dropped = droppedMessages }: FlowWatchOptions) {
    this.#transport = open()
    this.#dropped = dropped
    const lost = () => {
      this.#overruns++
    }
    try {
      this.#events = watchFlowEvents({ transport: this.#transport, clock, kinds, take, lost })
    } catch (error) {
      void this.#transport.close()
      throw error
    }
  }

  /** Gives how many events were lost since the last call; a gap counts as one if the kernel reports no number. */
  takeLost(): number {
    if (this.#overruns === 0) return 0
    const gaps = this.#overruns
    this.#overruns = 0
    const total = this.#dropped(this.#transport.portId)
    const news = total === undefined ? gaps : total - this.#counted
    this.#counted = total ?? this.#counted
    return news
  }

  /** Takes what the kernel has queued, and ends. */
  stop(): void {
    this.#events.stop()
  }

  /** Closes the socket; no count of lost events is available afterwards. */
  close(): Promise<void> {
    return this.#transport.close()
  }
}
