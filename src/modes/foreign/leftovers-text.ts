import { count } from '../../base/text.ts'
import type { TableName } from '../../kernel/nft/state.ts'
import { DUMMY_DEVICE } from '../common/kube-proxy.ts'
import type { Elsewhere, IptablesLeftover, Leftovers } from './leftovers.ts'
import { kubeProxyChains, type LegacyTable } from './legacy-iptables.ts'

/** Commands that remove leftovers. */
export const REMOVES_NFT = '`kprobe cleanup --leftovers-of=kube-proxy`'
export const REMOVES_ALL = '`kube-proxy --cleanup`'

export const REMOVES_IPTABLES = '`kprobe cleanup --proxy-mode=iptables`'

/** Owner of the chains of iptables mode. The chains do not name it; only kprobe leaves a record. */
export type IptablesOwner = 'kprobe' | 'unknown'

/** One leftover, its owner, and the command that removes it. */
export interface LeftoverText {
  readonly by: 'kube-proxy' | 'kprobe'
  readonly what: string
  readonly command: string
}

/** Lists all leftovers, one a line. Pure. */
export function leftoverTexts(
  { nftables, iptables, elsewhere }: Leftovers,
  owner: IptablesOwner = 'unknown',
): readonly LeftoverText[] {
  const kubeProxys = (command: string) => (what: string) => ({ by: 'kube-proxy' as const, what, command })
  return [
    ...nftables.map(table => `table ${nameOf(table)} of its nftables mode`).map(kubeProxys(REMOVES_NFT)),
    ...iptables.filter(({ chains }) => chains.length > 0).map(left => iptablesText(left, owner)),
    ...elsewhereTexts(elsewhere).map(kubeProxys(REMOVES_ALL)),
    ...ipvsTexts(elsewhere).map(kubeProxys(REMOVES_NFT)),
  ]
}

function iptablesText(left: IptablesLeftover, owner: IptablesOwner): LeftoverText {
  const what = `${chainsOf(left)} of its iptables mode`
  return owner === 'kprobe'
    ? { by: 'kprobe', what, command: REMOVES_IPTABLES }
    : { by: 'kube-proxy', what: `${what}, or of kprobe's, which writes the same`, command: REMOVES_NFT }
}

const NAMES_SHOWN = 3

function elsewhereTexts({ legacyTables, virtualServers }: Elsewhere): readonly string[] {
  return [
    ...legacyTables.flatMap(legacyTexts),
    ...(virtualServers.length === 0
      ? []
      : [
          `${count(virtualServers.length, 'IPVS virtual server')}, if they are its; the command removes all virtual servers, those of other programs too`,
        ]),
  ]
}

function legacyTexts(table: LegacyTable): readonly string[] {
  const { chains } = table
  if (typeof chains === 'string')
    return [
      `its chains, if any, in legacy iptables, table ${nameOf(table)}, which cannot be read (${chains})`,
    ]
  const left = kubeProxyChains(table)
  return left.length === 0
    ? []
    : [`${count(left.length, 'chain')} of its iptables mode in legacy iptables, table ${nameOf(table)}`]
}

/** Lists objects that only an IPVS mode with kube-proxy's names leaves. Pure. */
export function ipvsTexts({ ipsets, device }: Elsewhere): readonly string[] {
  const more = ipsets.length > NAMES_SHOWN ? ', ...' : ''
  const names = `${ipsets.slice(0, NAMES_SHOWN).join(', ')}${more}`
  return [
    ...(ipsets.length === 0 ? [] : [`${count(ipsets.length, 'ipset')} of its IPVS mode (${names})`]),
    ...(device ? [`the network device ${DUMMY_DEVICE} of its IPVS mode`] : []),
  ]
}

/** Lists what a removal removed. Pure. */
export function removedTexts({
  nftables,
  iptables,
}: Pick<Leftovers, 'nftables' | 'iptables'>): readonly string[] {
  return [
    ...nftables.map(table => `table ${nameOf(table)}`),
    ...iptables.filter(({ chains }) => chains.length > 0).map(chainsOf),
  ]
}

/** Lists what a removal keeps because other rules use it. Pure. */
export function keptTexts({ iptables }: Pick<Leftovers, 'iptables'>): readonly string[] {
  return iptables.flatMap(({ table, kept }) =>
    kept.map(({ chain, usedBy }) => `chain ${chain} in table ${nameOf(table)}, which ${usedBy} leads to`),
  )
}

function chainsOf({ table, chains, jumps }: IptablesLeftover): string {
  const rules = jumps === 0 ? '' : ` and ${count(jumps, 'rule')} that led to them`
  return `${count(chains.length, 'chain')}${rules} in table ${nameOf(table)}`
}

function nameOf({ family, name }: TableName): string {
  return `${family} ${name}`
}
