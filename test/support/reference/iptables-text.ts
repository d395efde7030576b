import type { NftFamily } from '../../../src/kernel/nft/state.ts'

/** Rules of each chain without `-A CHAIN `, by `ip nat KUBE-SERVICES`. */
export type SavedChains = Map<string, string[]>

/** What `iptables-save` printed, added to `chains`. */
export function readSave(chains: SavedChains, family: NftFamily, text: string): void {
  let table = ''
  for (const line of text.split('\n')) {
    const chain = /^:(\S+) /.exec(line)
    const rule = /^-A (\S+) ?(.*)$/.exec(line)
    if (line.startsWith('*')) table = line.slice(1)
    else if (chain !== null) chains.set(`${family} ${table} ${chain[1]}`, [])
    else if (rule !== null) chains.get(`${family} ${table} ${rule[1]}`)?.push(rule[2] ?? '')
    else if (line !== '' && line !== 'COMMIT' && !line.startsWith('#'))
      throw new Error(`not a line of iptables-save: ${line}`)
  }
}

/** Takes out the chains of endpoints that nothing leads to; gives their names, sorted. */
export function takeUnreached(chains: SavedChains): readonly string[] {
  const reached = new Set(
    [...chains.values()].flat().map(rule => / -j (KUBE-SEP-\S+)$/.exec(` ${rule}`)?.[1]),
  )
  const unreached = [...chains.keys()].filter(name => {
    const chain = name.split(' ')[2] ?? ''
    return chain.startsWith('KUBE-SEP-') && !reached.has(chain)
  })
  for (const name of unreached) chains.delete(name)
  return unreached.sort()
}

/** Chains in which each Service has rules, in no order. */
const SHARED =
  / (filter KUBE-(SERVICES|EXTERNAL-SERVICES|NODEPORTS|PROXY-FIREWALL)|nat KUBE-(SERVICES|NODEPORTS))$/
const TAIL = 'kubernetes service nodeports; NOTE: this must be the last rule in this chain'
const BUILT_IN = / (INPUT|FORWARD|OUTPUT|PREROUTING|POSTROUTING)$/

/**
 * One line for each chain and rule that both must have. The order of rules of different Services means nothing, that of
 * other rules and that the jump to NodePorts comes last do.
 */
export function comparableLines(chains: SavedChains): readonly string[] {
  return [...chains]
    .filter(([name, rules]) => rules.length > 0 || !BUILT_IN.test(name))
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([name, rules]) => [name, ...ordered(name, rules).map(rule => `${name}: ${rule}`)])
}

function ordered(name: string, rules: readonly string[]): readonly string[] {
  if (!SHARED.test(name)) return rules
  const tail = rules.filter(rule => rule.includes(TAIL))
  const entries = rules.slice(0, rules.length - tail.length)
  if (entries.some(rule => rule.includes(TAIL))) throw new Error(`${name}: the jump to NodePorts is not last`)
  return [...entries.sort(), ...tail.sort()]
}

interface LineDifferences {
  readonly kubeProxy: readonly string[]
  readonly kprobe: readonly string[]
}

/** Lines that only one of them has; of a chain with the same rules in another order, both orders. */
export function differentLines(kubeProxy: readonly string[], kprobe: readonly string[]): LineDifferences {
  const surplus = (from: readonly string[], taken: readonly string[]): string[] => {
    const left = new Map<string, number>()
    for (const line of taken) left.set(line, (left.get(line) ?? 0) + 1)
    return from.filter(line => {
      const count = left.get(line) ?? 0
      left.set(line, count - 1)
      return count <= 0
    })
  }
  const found = { kubeProxy: surplus(kubeProxy, kprobe), kprobe: surplus(kprobe, kubeProxy) }
  if (found.kubeProxy.length > 0 || found.kprobe.length > 0) return found
  const moved = (from: readonly string[], to: readonly string[]): string[] =>
    from.filter((line, index) => line !== to[index])
  return { kubeProxy: moved(kubeProxy, kprobe), kprobe: moved(kprobe, kubeProxy) }
}
