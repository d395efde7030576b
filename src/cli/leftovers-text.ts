import { count } from '../base/text.ts'
import type { TableName } from '../kernel/nft/list.ts'
import { DUMMY_DEVICE } from '../modes/common/kube-proxy.ts'
import type { Elsewhere, IptablesLeftover, Leftovers } from './leftovers.ts'
import { kubeProxyChains, type LegacyTable } from './legacy-iptables.ts'

/** The commands that remove what is named. */
export const REMOVES_NFT = '`kprobe cleanup --leftovers-of=kube-proxy`'
export const REMOVES_ALL = '`kube-proxy --cleanup`'

export const REMOVES_IPTABLES = '`kprobe cleanup --proxy-mode=iptables`'

/** Who wrote the chains of iptables mode, which do not say it: the record of kprobe's does. */
export type IptablesOwner = 'kprobe' | 'unknown'

/** One thing that is left, who left it, and what removes it. */
export interface LeftoverText {
  readonly by: 'kube-proxy' | 'kprobe'
  readonly what: string
  readonly command: string
}

/** Everything that is there, one item a line. Pure. */
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

/** What only an IPVS mode with kube-proxy's names can have left. Pure. */
export function ipvsTexts({ ipsets, device }: Elsewhere): readonly string[] {
  const more = ipsets.length > NAMES_SHOWN ? ', ...' : ''
  const names = `${ipsets.slice(0, NAMES_SHOWN).join(', ')}${more}`
  return [
    ...(ipsets.length === 0 ? [] : [`${count(ipsets.length, 'ipset')} of its IPVS mode (${names})`]),
    ...(device ? [`the network device ${DUMMY_DEVICE} of its IPVS mode`] : []),
  ]
}

/** What a removal took away. Pure. */
export function removedTexts({
  nftables,
  iptables,
}: Pick<Leftovers, 'nftables' | 'iptables'>): readonly string[] {
  return [
    ...nftables.map(table => `table ${nameOf(table)}`),
    ...iptables.filter(({ chains }) => chains.length > 0).map(chainsOf),
  ]
}

/** What a removal cannot take away because others use it. Pure. */
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
