import type { Ip } from '../base/ip.ts'
import type { ProxyMode } from '../config/config.ts'
import type { NftFamily, Table } from '../kernel/nft/state.ts'
import { LAYOUTS } from '../modes/common/family.ts'
import type { ChainNames } from '../modes/iptables/layout.ts'
import { KUBE_LOAD_BALANCER } from '../modes/ipvs/chains.ts'
import type { IpvsState } from '../modes/ipvs/state.ts'
import { isOfService, type ReadChain } from './iptables-chains.ts'
import { iptablesServiceRows } from './iptables-service-rows.ts'
import { ipvsServiceRows } from './ipvs-service-rows.ts'
import { kernelRows } from './kernel-rows.ts'
import { type ReadRules, withReach } from './reach.ts'
import { damageOfChains, damageOfTables, rulesOfChains, rulesOfIpvs, rulesOfTables } from './read-rules.ts'
import type { ServiceNames } from './service-names.ts'
import { type ServiceRow, sortedRows } from './service-rows.ts'
import { userspaceRows } from './userspace-rows.ts'

/** What the kernel holds of every mode, as it was read. */
export interface ReadModes {
  readonly families: readonly NftFamily[]
  /** Elements grouped by Service. */
  readonly nftables: readonly Table[]
  readonly userspace: readonly Table[]
  /** All chains of the tables of iptables. */
  readonly iptables: readonly ReadChain[]
  /** Undefined without a table of IPVS mode. */
  readonly ipvs: ReadIpvs | undefined
  readonly names: ChainNames
}

export interface ReadIpvs {
  readonly state: IpvsState
  readonly names: ServiceNames
  readonly localIps: readonly Ip[]
}

/** One mode whose rules the kernel holds. */
export interface ProgrammedMode {
  readonly mode: ProxyMode
  /** Those that packets do not come to are marked. */
  readonly rows: readonly ServiceRow[]
  /** What all Services share, and what of it is missing. */
  readonly damage: readonly string[]
  readonly rules: ReadRules
}

/** Every mode that has rules in the kernel, with the rows of `service`, or of all Services if that is empty. Pure. */
export function programmedModes(read: ReadModes, service = ''): readonly ProgrammedMode[] {
  const { nftables, userspace, iptables, ipvs, names, families } = read
  const ofFamilies = (tables: readonly Table[]) => damageOfTables(tables, families)
  const modes: ProgrammedMode[] = []
  const add = (
    mode: ProxyMode,
    all: readonly ServiceRow[],
    rest: Pick<ProgrammedMode, 'rules' | 'damage'>,
  ) => {
    const wanted = service === '' ? all : all.filter(row => isOfService([row.service], service))
    const rows = sortedRows(withReach(wanted, rest.rules, all)).map(row => ({ ...row, mode }))
    modes.push({ mode, rows, ...rest })
  }
  if (nftables.length > 0)
    add('nftables', kernelRows(nftables), {
      rules: rulesOfTables(nftables),
      damage: ofFamilies(nftables),
    })
  const ofChains = iptablesServiceRows(iptables, names)
  if (ofChains.length > 0)
    add('iptables', ofChains, {
      rules: rulesOfChains(iptables, names),
      damage: damageOfChains(iptables, names),
    })
  if (userspace.length > 0)
    add('userspace', userspaceRows(userspace, ''), {
      rules: rulesOfTables(userspace),
      damage: ofFamilies(userspace),
    })
  if (ipvs !== undefined) {
    const { state, names: services, localIps } = ipvs
    const shown = ipvsServiceRows(state, services).filter(row => isOfFamilies(row, families))
    add('ipvs', shown, {
      rules: rulesOfIpvs(state, chainsOfIpvs(iptables), localIps),
      damage: ofFamilies(state.ruleset.tables.filter(({ family }) => families.includes(family))),
    })
  }
  return modes
}

function isOfFamilies({ frontend }: ServiceRow, families: readonly NftFamily[]): boolean {
  return families.some(family => (LAYOUTS[family].model === 'IPv6') === frontend.startsWith('['))
}

/** The chains of iptables are those of IPVS mode where they have one that no other mode has. */
function chainsOfIpvs(chains: readonly ReadChain[]): readonly ReadChain[] {
  return chains.some(({ ours, name }) => ours && name === KUBE_LOAD_BALANCER) ? chains : []
}

/** The first thing that is wrong, and how many rows are; undefined when all is well. */
export function damageText(modes: readonly ProgrammedMode[]): string | undefined {
  const rows = modes.flatMap(mode => mode.rows)
  const hurt = rows.filter(({ problem }) => problem !== undefined)
  const [first] = [
    ...modes.flatMap(({ mode, damage }) => damage.map(text => `${mode} mode: ${text}`)),
    ...hurt.map(({ service, frontend, problem }) => `${service} at ${frontend}: ${problem}`),
  ]
  if (first === undefined) return undefined
  return `${first}; ${hurt.length} of ${rows.length} frontends are not reached or incomplete`
}
