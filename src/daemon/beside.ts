import { type Clock, Pacer } from '../base/clock.ts'
import type { Log } from '../base/log.ts'
import type { Config } from '../config/config.ts'
import { dumpChain } from '../kernel/nft/list-chains.ts'
import { isKubeProxyObject } from '../modes/common/kube-proxy.ts'
import { NFT_FAMILIES } from '../modes/common/tables.ts'
import { Connection } from '../netlink/connection.ts'
import { NetlinkError } from '../netlink/errors.ts'
import type { Transport } from '../netlink/transport.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import { type EventFact, kubeProxyBeside } from '../telemetry/event.ts'
import type { HealthCheck } from '../telemetry/health.ts'
import type { Metrics } from '../telemetry/metrics.ts'
import type { DaemonIo } from './io.ts'

/** What shows a kube-proxy on this node. Plain data. */
export interface BesideReading {
  /** Its processes in this network namespace, as far as this process sees them. */
  readonly processes: readonly number[]
  /** Its ports that another process holds, with the name of that process; undefined where /proc hides it. */
  readonly ports: ReadonlyMap<string, string | undefined>
  /** The highest handle of the rules in each of its CHAINS that has some, by place: `KUBE-SERVICES in ip nat`. */
  readonly newest: ReadonlyMap<string, bigint>
}

/** Signs of a kube-proxy, as texts: those that last, and those of something that it did between two readings. */
interface Signs {
  readonly lasting: readonly string[]
  readonly done: readonly string[]
}

const KUBE_PROXY = 'kube-proxy'

/** Compares two readings. `hasWritten`: kprobe itself has written chains of iptables between them. Pure. */
function signsOf(before: BesideReading | undefined, now: BesideReading, hasWritten: boolean): Signs {
  const written = [...now.newest]
    .filter(([place, handle]) => before !== undefined && handle > (before.newest.get(place) ?? 0n))
    .map(([place]) => `the chain ${place} was written`)
  return {
    lasting: [
      ...now.processes.map(pid => `process kube-proxy (pid ${pid})`),
      // A holder with a visible name is one of these processes, or another program.
      ...[...now.ports].flatMap(([port, holder]) => (holder === undefined ? [`${HIDDEN} ${port}`] : [])),
    ],
    done: hasWritten ? written.filter(isOfItsTable) : written,
  }
}

/** kprobe writes the chains of iptables as well, in a mode with chains, and none of these. */
const isOfItsTable = (sign: string): boolean => sign.endsWith(`${KUBE_PROXY} was written`)

const HIDDEN = 'a process without a visible name listens at'

/** Tests whether one sign is kube-proxy's for certain. */
const isCertain = (signs: readonly string[]): boolean => signs.some(sign => !sign.startsWith(HIDDEN))

interface KubeProxyWatchOptions {
  readonly clock: Clock
  readonly log: Log
  readonly nodeName: string
  readonly read: () => Promise<BesideReading>
  /** Tests whether kprobe writes kube-proxy's chains itself. */
  readonly writesChains: () => boolean
  readonly metrics: Pick<Metrics, 'kprobe_kube_proxy_beside'>
  readonly tell: (fact: EventFact) => void
}

/** A hand-over, in which both run for some seconds, ends before the first reading, or shows in one reading at most. */
const PERIOD_MS = 60_000
/** kube-proxy writes all its rules at least every syncPeriod, which is an hour by default. */
const REMEMBERED_MS = 70 * 60_000

/**
 * Watches for a kube-proxy on this node: kubeadm applies its DaemonSet again at an upgrade. kprobe reports it and goes on;
 * it stops no process, and deletes and changes nothing that is kube-proxy's alone.
 */
export class KubeProxyWatch {
  readonly #options: KubeProxyWatchOptions
  readonly #pacer: Pacer
  #before: BesideReading | undefined
  #lastingBefore: readonly string[] = []
  /** Writes that the last reading found. A commit of kprobe made them if it is reported before the next reading. */
  #doubtful: readonly string[] = []
  /** kprobe has written these chains since the last reading began. */
  #hasWritten = false
  #signs: readonly string[] = []
  #seenMs = 0

  constructor(options: KubeProxyWatchOptions) {
    this.#options = options
    options.metrics.kprobe_kube_proxy_beside.set(0)
    this.#pacer = new Pacer({ clock: options.clock, run: () => this.#pass() })
    this.#pacer.wake(PERIOD_MS)
  }

  /** Gives a line of /healthz?verbose that decides nothing; undefined without a sign of kube-proxy. */
  get check(): HealthCheck | undefined {
    if (this.#signs.length === 0) return undefined
    const failure = `${isCertain(this.#signs) ? 'runs' : 'may run'} beside kprobe: ${this.#signs.join('; ')}`
    return { name: KUBE_PROXY, failure, isAdvice: true }
  }

  report(event: ReconcilerEvent): void {
    if (event.kind === 'committed' && this.#options.writesChains()) {
      this.#hasWritten = true
      this.#doubtful = this.#doubtful.filter(isOfItsTable)
    }
    if (event.kind !== 'repaired') return
    const its = event.objects.find(isKubeProxyObject)
    if (its !== undefined) this.#note([`it writes into kprobe's tables (${its})`])
  }

  stop(): Promise<void> {
    return this.#pacer.stop()
  }

  async #pass(): Promise<number> {
    const { read, log, clock } = this.#options
    const [hasWritten, written] = [this.#hasWritten, this.#doubtful]
    this.#hasWritten = false
    try {
      const now = await read()
      // A commit during the reading may show in this one or in the next one.
      const { lasting, done } = signsOf(this.#before, now, hasWritten || this.#hasWritten)
      const signs = [...lasting.filter(sign => this.#lastingBefore.includes(sign)), ...written]
      this.#before = now
      this.#lastingBefore = lasting
      this.#doubtful = done
      if (signs.length > 0) this.#note(signs)
      else if (this.#signs.length > 0 && clock.nowMs() - this.#seenMs > REMEMBERED_MS) this.#forget()
    } catch (err) {
      this.#hasWritten ||= hasWritten
      log.debug({ err }, 'cannot check whether kube-proxy runs on this node')
    }
    return PERIOD_MS
  }

  /** Logs the first signs, and the first certain ones: later ones are of the same kube-proxy. */
  #note(signs: readonly string[]): void {
    const { clock, log, metrics, tell, nodeName } = this.#options
    const wasCertain = isCertain(this.#signs)
    const isNews = this.#signs.length === 0 || (isCertain(signs) && !wasCertain)
    this.#seenMs = clock.nowMs()
    // A process without a visible name is the kube-proxy that has shown itself before.
    if (isCertain(signs) || !wasCertain) this.#signs = signs
    if (!isNews) return
    metrics.kprobe_kube_proxy_beside.set(1)
    log.error({ signs }, isCertain(signs) ? BESIDE : MAYBE_BESIDE)
    tell(kubeProxyBeside(nodeName, signs))
  }

  #forget(): void {
    this.#signs = []
    this.#options.metrics.kprobe_kube_proxy_beside.set(0)
    this.#options.log.info('kube-proxy no longer runs beside kprobe')
  }
}

const BESIDE =
  'kube-proxy runs on this node beside kprobe, and both program the same Services; kprobe goes on and does not touch it; keep it off this node (docs/upgrades.md)'

const MAYBE_BESIDE =
  'another process listens at a port of kube-proxy, and may be kube-proxy; kprobe goes on; keep kube-proxy off this node (docs/upgrades.md)'

/** Makes the watch of a daemon; undefined for a named proxy, which serves other Services than kube-proxy. */
export function kubeProxyWatchOf(
  { serviceProxyName, nodeName }: Config,
  options: Omit<KubeProxyWatchOptions, 'read' | 'nodeName'> &
    Pick<DaemonIo, 'openTransport' | 'processesNamed' | 'holderOf'> & {
      /** Addresses of kube-proxy's ports that are in use. */
      readonly ports: () => readonly string[]
    },
): KubeProxyWatch | undefined {
  if (serviceProxyName !== undefined) return undefined
  const { clock, openTransport, processesNamed, ports, holderOf } = options
  const held = async (port: string) => [port, await holderOf?.(Number(port.split(':').at(-1)))] as const
  const read = async () => ({
    processes: (await processesNamed?.(KUBE_PROXY)) ?? [],
    ports: new Map(await Promise.all(ports().map(held))),
    newest: await newestHandles(openTransport(), clock),
  })
  return new KubeProxyWatch({ ...options, nodeName, read })
}

/**
 * kube-proxy writes the rules of the first one at each sync, and those of the second one at a start and each hour. Its canary
 * is no sign: the chain has no rules, kube-proxy leaves it behind, and kprobe makes it in iptables mode.
 */
const CHAINS = [
  { table: 'nat', chain: 'KUBE-SERVICES' },
  { table: KUBE_PROXY, chain: 'cluster-ips-check' },
] as const

async function newestHandles(transport: Transport, clock: Clock): Promise<BesideReading['newest']> {
  const newest = new Map<string, bigint>()
  const connection = new Connection({ transport, clock })
  try {
    for (const family of NFT_FAMILIES)
      for (const place of CHAINS) {
        const name = `${place.chain} in ${family} ${place.table}`
        await dumpChain(connection, { family, ...place }, ({ handle }) => {
          if (handle > (newest.get(name) ?? 0n)) newest.set(name, handle)
        }).catch(unlessMissing)
      }
    return newest
  } finally {
    await transport.close()
  }
}

/** The errors of a node without iptables-nft, or without IPv6. */
const NO_SUCH_TABLE: readonly string[] = ['ENOENT', 'EAFNOSUPPORT', 'EOPNOTSUPP']

function unlessMissing(error: unknown): void {
  if (!(error instanceof NetlinkError) || !NO_SUCH_TABLE.includes(error.code)) throw error
}
