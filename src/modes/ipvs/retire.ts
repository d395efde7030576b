import { anyContains } from '../../base/cidr.ts'
import type { Clock } from '../../base/clock.ts'
import type { IpvsOperation } from '../../kernel/ipvs/operation.ts'
import type { VirtualAddress } from '../../kernel/ipvs/state.ts'
import { NF_INET_LOCAL_OUT, NF_INET_PRE_ROUTING, NF_IP_PRI_NAT_DST } from '../../kernel/nft/constants.ts'
import type { Operation, Transaction } from '../../kernel/nft/operation.ts'
import type { NftFamily, Ruleset } from '../../kernel/nft/state.ts'
import { CHAIN_OUTPUT, CHAIN_PREROUTING, CHAIN_REJECT } from '../common/chain-names.ts'
import { goTo, rule } from '../common/expressions.ts'
import { LAYOUTS } from '../common/family.ts'
import { rejectChain } from '../common/rules.ts'
import type { ModeContext, Retired } from '../mode.ts'
import { hasIpvsTable, type IpvsKernel, withIpvsKernel } from './kernel.ts'
import { createIpvsPlane, type IpvsPlane } from './plane.ts'
import { setName } from './set-names.ts'
import { type IpvsOptions, ipvsOptions } from './settings.ts'
import type { PlacedServer } from './state.ts'

/**
 * Lets the connections of IPVS end, for as long as the configuration allows, and then removes everything.
 * Does nothing without our own table, which distinguishes this program's objects from those of kube-proxy's
 * IPVS mode.
 */
export async function retireIpvs(context: ModeContext, signal: AbortSignal): Promise<Retired> {
  const { clock } = context
  const options = ipvsOptions(context.config)
  if (!(await hasIpvsTable(context))) return 'nothing'
  await withIpvsKernel(context, async kernel => {
    const plane = createIpvsPlane({ ...kernel, clock, options })
    try {
      await retireIpvsPlane({ kernel, plane, clock, options, signal })
    } finally {
      await plane.close()
    }
  })
  return 'removed'
}

interface RetireOptions {
  readonly kernel: IpvsKernel
  readonly plane: IpvsPlane
  readonly clock: Clock
  readonly options: IpvsOptions
  /** Ends the wait. The present objects stay for the next process. */
  readonly signal: AbortSignal
}

/** The interval between reads of the remaining connections. */
const LOOK_MS = 1_000

/**
 * Leaves the kernel to another mode, which already has nat chains at priority -100. New connections no longer
 * go to our endpoints. Connections may end until drainMs is over, and then all objects are removed
 * (docs/decisions/0015). Throws the kernel's error when an object cannot be changed.
 */
export async function retireIpvsPlane({
  kernel,
  plane,
  clock,
  options,
  signal,
}: RetireOptions): Promise<void> {
  const { state } = await plane.observe()
  // The cleanup also keeps those in excluded prefixes.
  const placed = state.servers.values().filter(({ server }) => !anyContains(options.excludeCidrs, server.ip))
  await drainAll(kernel, placed)
  await shrink(kernel, state.ruleset, options)
  const servers = placed.map(({ server }) => server)
  const endMs = clock.nowMs() + options.drainMs
  while (!signal.aborted && clock.nowMs() < endMs && (await hasConnections(kernel, servers)))
    await pause(clock, Math.min(LOOK_MS, endMs - clock.nowMs()), signal)
  if (!signal.aborted) await plane.cleanup()
}

/** Sets the weight of all real servers to 0. Real servers deleted since the read are ignored. */
async function drainAll({ ipvs }: IpvsKernel, servers: readonly PlacedServer[]): Promise<void> {
  const operations = servers.flatMap(({ server, destinations }) =>
    [...destinations.values()]
      .filter(({ weight }) => weight > 0)
      .map((destination): IpvsOperation => {
        const drained = { ...destination, weight: 0 }
        return { verb: 'set-destination', server, destination: drained, isNew: false, group: '' }
      }),
  )
  const { unknown, failures } = await ipvs.commit(operations)
  const failure = unknown ?? failures.find(({ code }) => code !== 'ENOENT' && code !== 'ESRCH')?.error
  if (failure !== undefined) throw failure
}

/** Replaces the whole table by the guard, in one transaction. */
async function shrink({ nft }: IpvsKernel, { tables }: Ruleset, { tableName }: IpvsOptions): Promise<void> {
  const transaction = tables.flatMap(({ family }) => guardOf(family, tableName))
  if (transaction.length === 0) return
  const { outcome, failures } = await nft.commit(transaction, {})
  if (outcome !== 'committed') throw failures[0]?.error ?? new Error(`shrink ${tableName}: ${outcome}`)
}

/** A priority behind the chains of the other mode, so that packets which these translated do not match. */
const PRIORITY = NF_IP_PRI_NAT_DST + 1

/** Makes the guard. Without it, an untranslated packet to a bound address would reach the node's own ports. */
function guardOf(family: NftFamily, table: string): Transaction {
  const layout = LAYOUTS[family]
  const bound = setName('IPVS-IPS', layout.model)
  const rules = [
    rule([{ kind: 'ipset', set: bound, dimensions: ['dst'], inverted: false }, goTo(CHAIN_REJECT)]),
  ]
  const hooked = (name: string, hooknum: number): readonly Operation[] => [
    {
      verb: 'add-chain',
      family,
      table,
      chain: { name, hook: { type: 'nat', hooknum, priority: PRIORITY }, rules: [] },
    },
    ...rules.map((its): Operation => ({ verb: 'add-rule', family, table, chain: name, rule: its })),
  ]
  const reject = rejectChain(layout)
  return [
    { verb: 'delete-table', family, table },
    { verb: 'add-table', family, table, flags: 0, comment: undefined },
    { verb: 'add-chain', family, table, chain: { ...reject, rules: [] } },
    ...reject.rules.map(
      (its): Operation => ({ verb: 'add-rule', family, table, chain: CHAIN_REJECT, rule: its }),
    ),
    ...hooked(CHAIN_PREROUTING, NF_INET_PRE_ROUTING),
    ...hooked(CHAIN_OUTPUT, NF_INET_LOCAL_OUT),
  ]
}

async function hasConnections({ ipvs }: IpvsKernel, servers: readonly VirtualAddress[]): Promise<boolean> {
  const lists = await ipvs.destinations(servers)
  return lists.flat().some(each => each.activeConnections + each.inactiveConnections > 0)
}

function pause(clock: Clock, delayMs: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const end = () => {
      cancel()
      signal.removeEventListener('abort', end)
      resolve()
    }
    const cancel = clock.after(delayMs, end)
    signal.addEventListener('abort', end, { once: true })
  })
}
