import { type Clock, Pacer } from '../base/clock.ts'
import type { Log } from '../base/log.ts'
import type { Config } from '../config/config.ts'
import { dumpChain } from '../kernel/nft/list-chains.ts'
import type { NftFamily } from '../kernel/nft/state.ts'
import { isKubeProxyObject } from '../modes/common/kube-proxy.ts'
import { NFT_FAMILIES } from '../modes/common/tables.ts'
import { Connection } from '../netlink/connection.ts'
import { NetlinkError } from '../netlink/errors.ts'
import type { Transport } from '../netlink/transport.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import { type EventFact, kubeProxyBeside } from '../telemetry/event.ts'
import type { HealthCheck } from '../telemetry/health.ts'
import type { Metrics } from '../telemetry/metrics.ts'

/** What shows a kube-proxy on this node. Plain data. */
export interface BesideReading {
  /** Its processes in this network namespace, as far as this process sees them. */
  readonly processes: readonly number[]
  /** Its ports that another process holds. */
  readonly ports: readonly string[]
  /** The highest handle in KUBE-SERVICES, by family; absent without such rules. kube-proxy writes them anew at each sync. */
  readonly newestRules: ReadonlyMap<NftFamily, bigint>
}

/** Signs of a kube-proxy, as texts: those that last, and those of something that it did between two readings. */
interface Signs {
  readonly lasting: readonly string[]
  readonly done: readonly string[]
}

/** Compares two readings. `hasWritten`: kprobe itself has written these chains between them. Pure. */
function signsOf(before: BesideReading | undefined, now: BesideReading, hasWritten: boolean): Signs {
  const written = [...now.newestRules]
    .filter(([family, handle]) => before !== undefined && handle > (before.newestRules.get(family) ?? 0n))
    .map(([family]) => `the chain KUBE-SERVICES in ${family} nat was written`)
  return {
    lasting: [
      ...now.processes.map(pid => `process kube-proxy (pid ${pid})`),
      ...now.ports.map(port => `${port} is in use`),
    ],
    done: hasWritten ? [] : written,
  }
}

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
    return { name: 'kube-proxy', failure: `runs beside kprobe: ${this.#signs.join('; ')}`, isAdvice: true }
  }

  report(event: ReconcilerEvent): void {
    if (event.kind === 'committed' && this.#options.writesChains()) {
      this.#hasWritten = true
      this.#doubtful = []
    }
    if (event.kind !== 'healed') return
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

  /** Logs the first signs only: later ones are of the same kube-proxy. */
  #note(signs: readonly string[]): void {
    const { clock, log, metrics, tell, nodeName } = this.#options
    const isNews = this.#signs.length === 0
    this.#signs = signs
    this.#seenMs = clock.nowMs()
    if (!isNews) return
    metrics.kprobe_kube_proxy_beside.set(1)
    log.error({ signs }, BESIDE)
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

/** Makes the watch of a daemon; undefined for a named proxy, which serves other Services than kube-proxy. */
export function kubeProxyWatchOf(
  { serviceProxyName, nodeName }: Config,
  options: Omit<KubeProxyWatchOptions, 'read' | 'nodeName'> & {
    readonly openTransport: () => Transport
    readonly processesNamed?: ((name: string) => Promise<readonly number[]>) | undefined
    readonly ports: () => readonly string[]
  },
): KubeProxyWatch | undefined {
  if (serviceProxyName !== undefined) return undefined
  const { clock, openTransport, processesNamed, ports } = options
  const read = async () => ({
    processes: (await processesNamed?.('kube-proxy')) ?? [],
    ports: ports(),
    newestRules: await newestRules(openTransport(), clock),
  })
  return new KubeProxyWatch({ ...options, nodeName, read })
}

async function newestRules(transport: Transport, clock: Clock): Promise<BesideReading['newestRules']> {
  const newest = new Map<NftFamily, bigint>()
  const connection = new Connection({ transport, clock })
  try {
    for (const family of NFT_FAMILIES)
      await dumpChain(connection, { family, table: 'nat', chain: 'KUBE-SERVICES' }, ({ handle }) => {
        if (handle > (newest.get(family) ?? 0n)) newest.set(family, handle)
      }).catch(unlessMissing)
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
