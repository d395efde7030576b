import { EARLY_NAT_PRIORITY, NAT_PRIORITY } from '../modes/common/rules.ts'
import { type ChainNames, chainNames } from '../modes/iptables/layout.ts'
import { DEFAULT_IPVS_OPTIONS } from '../modes/ipvs/options.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../modes/nftables/options.ts'
import { DEFAULT_USERSPACE_OPTIONS } from '../modes/userspace/options.ts'

/** What tells one proxy of a node from another: docs/decisions/0021. */
export interface Instance {
  /** Of the lock (takeLock): one daemon of each name, whatever its mode. */
  readonly lock: string
  /** Names of the tables `ip` and `ip6` of each mode. */
  readonly nftables: string
  readonly userspace: string
  /** Undefined for a named proxy: the kernel has one IPVS in a network namespace. */
  readonly ipvs: string | undefined
  /** Of its chains in tables that it shares with everybody: iptables mode. */
  readonly chains: ChainNames
  /** Chains of a named proxy have a hash of its name: two names that share it cannot run at once. */
  readonly chainsLock: string | undefined
  /** Of its hooks that translate destinations. */
  readonly natPriority: number
}

/**
 * `name` is the value of --service-proxy-name, undefined for the proxy without one. A DNS label has no dot and no slash,
 * and two of them are refused (config/instance-name.ts): no two names have a table or lock in common. Names of
 * chains have 28 characters at most: one pair of names in 2^25 has the same ones.
 */
export function instanceOf(name: string | undefined): Instance {
  const chains = chainNames(name)
  const [nftables, userspace] = [DEFAULT_NFTABLES_OPTIONS.tableName, DEFAULT_USERSPACE_OPTIONS.tableName]
  if (name === undefined)
    return {
      lock: LOCK_NAME,
      nftables,
      userspace,
      ipvs: DEFAULT_IPVS_OPTIONS.tableName,
      chains,
      chainsLock: undefined,
      natPriority: NAT_PRIORITY,
    }
  return {
    lock: `${LOCK_NAME}/${name}`,
    nftables: `${nftables}-${name}`,
    userspace: `${userspace}.${name}`,
    ipvs: undefined,
    chains,
    chainsLock: `kprobe/chains/${chains.prefix}`,
    natPriority: EARLY_NAT_PRIORITY,
  }
}

const LOCK_NAME = 'kprobe/kube-proxy'

/**
 * The name of the proxy whose table this is; undefined where no named proxy has a table of that name. Others may use such
 * names, too: it is for hints alone.
 */
export function instanceOfTable(table: string): string | undefined {
  const { nftables, userspace, ipvs } = instanceOf(undefined)
  if (table === userspace || table === ipvs) return undefined
  for (const prefix of [`${userspace}.`, `${nftables}-`])
    if (table.startsWith(prefix)) return table.slice(prefix.length)
  return undefined
}
