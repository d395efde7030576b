import type { Clock } from '../../base/clock.ts'
import { FAMILIES } from '../../base/ip.ts'
import { finish, finishInSlices, slicingOf } from '../../base/steps.ts'
import type { Config } from '../../config/config.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { Dataplane } from '../../reconcile/dataplane.ts'
import { detectorOf } from '../common/detector.ts'
import { LAYOUTS, NFT_FAMILIES } from '../common/family.ts'
import type { KernelSockets, ModeContext, ModeTracer, OpenPlane, Retired } from '../mode.ts'
import { KUBE_LOAD_BALANCER } from '../xt-common/ipvs-chain-names.ts'
import { chainNames, KUBE_PROXY_CANARY } from '../xt-common/layout.ts'
import { demandIptables, lesserLack } from './demand.ts'
import type { IptablesPlan } from './diff.ts'
import { type IptablesNumbers, iptablesMetrics, type TableRules } from './metrics.ts'
import { NO_NFACCT_COUNTERS, openNfacctCounters } from './nfacct-counters.ts'
import { createBusiestFirst } from './optimize/busiest-first.ts'
import { DEFAULT_IPTABLES_OPTIONS, type IptablesOptions } from './options.ts'
import { createIptablesPlane, type IptablesPlane } from './plane.ts'
import { renderIptablesState } from './render.ts'
import { RuleCounter, type RuleCounts, rulesWritten } from './rule-counts.ts'
import { EMPTY_STATE, type IptablesState, iptablesExtent } from './state.ts'
import { createIptablesTracer } from './trace.ts'
import { answersAtLoopback } from './tune.ts'

/** Opens iptables mode. Throws when nf_tables of this kernel cannot be reached. */
export function openIptables({
  config,
  clock,
  sockets,
  tell,
}: ModeContext): OpenPlane<IptablesState, IptablesPlan> {
  // This read fails without privileges. At this point nothing else is open.
  const isNamed = config.serviceProxyName !== undefined
  const nfacct = isNamed ? NO_NFACCT_COUNTERS : openNfacctCounters(sockets, clock, answersAtLoopback(config))
  const transport = sockets.netfilter()
  const client = createNftClient({ transport, clock })
  const writers = { openTransport: sockets.netfilter, own: transport.portId }
  const options = { ...iptablesOptions(config, sockets), nfacct: nfacct.available }
  let isRunning = false
  // A program that flushed the rules may have removed their counters too. Without the counters the kernel
  // rejects these rules.
  const written = new Written(() => {
    if (isRunning) nfacct.ensure()
  })
  const counter = new SharedCount(clock)
  const plane = createIptablesPlane({ client, options, writers, slicing: slicingOf(clock) })
  const busiest = options.optimize
    ? createBusiestFirst({
        client,
        clock,
        names: options.names,
        report: event => {
          if (event.kind === 'moved') plane.reordered()
          else if (event.kind === 'failed') tell?.(event)
        },
      })
    : undefined
  return {
    plane: written.watching(plane),
    demand: () => demandIptables(sockets, clock),
    start() {
      nfacct.ensure()
      isRunning = true
      const lack = lesserLack(sockets, clock)
      if (lack !== undefined) tell?.({ kind: 'notice', level: 'warn', text: LACK, facts: { lack } })
      tell?.({ kind: 'notice', level: 'info', text: options.optimize ? LIMIT : LIMITS, facts: {} })
      busiest?.start()
    },
    extent: state => iptablesExtent(state, options.names),
    misfits: ({ refusals }) => [...refusals.values()].flat(),
    traffic: () => Promise.resolve([]),
    async metrics(state) {
      if (state === undefined) return []
      const numbers = { ...written.numbers(await counter.of(state)), ...nfacct.read() }
      return iptablesMetrics(numbers, FAMILIES)
    },
    async close() {
      await busiest?.close()
      await Promise.all([client.close(), nfacct.close()])
    },
  }
}

const LACK = 'the kernel will refuse Services that need what it lacks'

const LIMIT =
  'session affinity remembers 100 clients an endpoint, unless xt_recent was loaded with a larger ip_list_tot'
const LIMITS = `${LIMIT}; each new connection passes the rules of all Services in turn; --iptables-optimize shortens that list`

/**
 * Whether the kernel holds chains of this mode under the names of the configuration's proxy. Those of the
 * unnamed proxy may be kube-proxy's: the chains do not show which program made them.
 */
async function hasIptablesChains({ config, clock, sockets }: ModeContext): Promise<boolean> {
  const names = chainNames(config.serviceProxyName)
  const asked = new Set([names.services, ...(names.proxy === undefined ? TELLING : [])])
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  try {
    const { observed } = await client.listChains(
      NFT_FAMILIES.map(family => ({ family, table: 'nat', chains: name => asked.has(name) })),
    )
    return [...observed.values()].some(({ chains }) => chains.has(names.services) && !isOfIpvs(chains))
  } finally {
    await client.close()
  }
}

const TELLING: readonly string[] = [KUBE_PROXY_CANARY, KUBE_LOAD_BALANCER]

/**
 * Whether KUBE-SERVICES belongs to IPVS mode: chains that only IPVS mode has are beside it, and the canary of
 * iptables mode is absent.
 */
function isOfIpvs(chains: Pick<ReadonlyMap<string, unknown>, 'has'>): boolean {
  return chains.has(KUBE_LOAD_BALANCER) && !chains.has(KUBE_PROXY_CANARY)
}

/**
 * Removes our chains and the rules that lead to them. The tables stay, because their hooks keep every flow.
 * Chains of the unnamed proxy have kube-proxy's names: they stay unless this process wrote them.
 */
export async function retireIptables(
  context: ModeContext,
  signal: AbortSignal,
  isKnown: boolean,
): Promise<Retired> {
  if (!(await hasIptablesChains(context))) return 'nothing'
  if (!isKnown && context.config.serviceProxyName === undefined) return { kept: ANYBODYS }
  if (signal.aborted) return 'nothing'
  const { plane, close } = openIptables(context)
  try {
    await plane.cleanup()
  } finally {
    await close()
  }
  return 'removed'
}

const ANYBODYS =
  "iptables-mode chains found; kept, because they may be kube-proxy's, which have the same names; remove them with `kprobe cleanup --proxy-mode=iptables`"

export function iptablesTracer(config: Config, table: FrontendTable): ModeTracer {
  const options = iptablesOptions(config, {})
  const state = finish(renderIptablesState(table, { base: EMPTY_STATE, without: new Set() }, options))
  return { ...createIptablesTracer(state), ownSource: () => undefined }
}

const TCP_BE_LIBERAL = 'proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal'

/**
 * Makes the options. tcpBeLiberal is read once, as in kube-proxy. kprobe sets the configured value before it
 * writes rules.
 */
export function iptablesOptions(
  config: Config,
  { setting = () => undefined }: Pick<KernelSockets, 'setting'>,
): IptablesOptions {
  const { detectLocal, masqueradeAll, masqueradeBit, iptables, conntrack, serviceProxyName } = config
  const [IPv4, IPv6] = FAMILIES.map(family => detectorOf(detectLocal, family))
  return {
    ...DEFAULT_IPTABLES_OPTIONS,
    names: chainNames(serviceProxyName),
    masqueradeAll,
    masqueradeBit,
    detector: { IPv4, IPv6 },
    localhostNodePorts: answersAtLoopback(config),
    tcpBeLiberal: conntrack.tcpBeLiberal || (setting(TCP_BE_LIBERAL) ?? 0) !== 0,
    optimize: iptables.optimize,
  }
}

/** Counts the rules of the last batch, and the batches that the kernel rejected. */
class Written {
  #last: RuleCounts = new Map()
  #failures: IptablesNumbers['failures'] = { full: 0, partial: 0 }
  /** Whether the whole state was read since the last committed batch: the next batch is then a full sync. */
  #hasLooked = false
  readonly #beforeLook: () => void

  constructor(beforeLook: () => void) {
    this.#beforeLook = beforeLook
  }

  watching(plane: IptablesPlane): Dataplane<IptablesState, IptablesPlan> {
    return {
      name: plane.name,
      empty: plane.empty,
      render: (frontends, options) => plane.render(frontends, options),
      diff: (from, to) => plane.diff(from, to),
      generation: () => plane.generation(),
      watchGeneration: (everyMs, changed) => plane.watchGeneration?.(everyMs, changed),
      watchWriters: report => plane.watchWriters(report),
      cleanup: () => plane.cleanup(),
      observe: async () => {
        this.#hasLooked = true
        this.#beforeLook()
        return await plane.observe()
      },
      commit: async (plan, options) => {
        const receipt = await plane.commit(plan, options)
        if (receipt.outcome === 'committed') {
          this.#last = rulesWritten(plan.operations)
          this.#hasLooked = false
        } else if (receipt.outcome !== 'stale') this.#failed()
        return receipt
      },
    }
  }

  #failed(): void {
    const { full, partial } = this.#failures
    this.#failures = this.#hasLooked ? { full: full + 1, partial } : { full, partial: partial + 1 }
  }

  numbers(totals: RuleCounts): Pick<IptablesNumbers, 'rules' | 'failures'> {
    const rules = NFT_FAMILIES.flatMap(family =>
      TABLES.map((table): TableRules => {
        const key = `${family} ${table}`
        const counts = { total: totals.get(key) ?? 0, last: this.#last.get(key) ?? 0 }
        return { table, family: LAYOUTS[family].model, ...counts }
      }),
    )
    return { rules, failures: this.#failures }
  }
}

/** The tables of kube-proxy's metrics. */
const TABLES = ['filter', 'nat'] as const

/** Runs one count at a time. Calls during a count share the next one. */
class SharedCount {
  readonly #clock: Clock
  readonly #counter = new RuleCounter()
  #running: Promise<unknown> = Promise.resolve()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  async of(state: IptablesState): Promise<RuleCounts> {
    if (state.kind !== 'rendered') return new Map()
    const counted = this.#running.then(() =>
      finishInSlices(this.#counter.count(state), slicingOf(this.#clock)),
    )
    this.#running = counted.catch(() => undefined)
    return await counted
  }
}
