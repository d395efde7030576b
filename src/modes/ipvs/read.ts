import { type Family, familyOf } from '../../base/ip.ts'
import type { IpsetListing } from '../../kernel/ipset/state.ts'
import { familyName } from '../common/read-rules.ts'
import { isOfService } from '../common/service-row.ts'
import type { DumpFilter, ModeContext } from '../mode.ts'
import { type IpvsKernel, withIpvsKernel } from './kernel.ts'
import { entryService, type ListedServerWith, nameOf } from './object-rows.ts'
import { observeKernel } from './observe.ts'
import { allSetNames } from './set-names.ts'
import { DEFAULT_IPVS_OPTIONS } from './settings.ts'
import type { IpvsState } from './state.ts'

type IpvsReadContext = Pick<ModeContext, 'sockets' | 'clock'>

/** Reads all objects of IPVS mode that are ours. */
export async function readIpvsState(kernel: IpvsKernel): Promise<IpvsState> {
  return (await observeKernel(kernel, { ...DEFAULT_IPVS_OPTIONS, remembered: new Map() })).state
}

/** Reads the whole state. Throws where the kernel cannot be read. */
export async function readWholeState(context: IpvsReadContext): Promise<IpvsState> {
  return await withIpvsKernel(context, readIpvsState)
}

/** Reads our virtual servers, with the number of connections of each real server. */
export async function readServers(
  context: IpvsReadContext,
  filter: DumpFilter,
): Promise<readonly ListedServerWith[]> {
  const { families, service, names } = filter
  return await withIpvsKernel(context, async kernel => {
    const { servers } = await readIpvsState(kernel)
    const shown = [...servers.values()]
      .map(({ server }) => server)
      .filter(
        server =>
          families.includes(familyName(familyOf(server.ip))) && isOfService([nameOf(server, names)], service),
      )
    const lists = await kernel.ipvs.destinations(shown)
    return shown.map((server, at) => ({ server, destinations: lists[at] ?? [] }))
  })
}

/** Reads the ipsets of this mode, including those of kube-proxy's IPVS mode, which have the same names. */
export async function readSets(
  context: IpvsReadContext,
  { families, service, names }: DumpFilter,
): Promise<readonly IpsetListing[]> {
  const sets = await withIpvsKernel(context, ({ ipset }) => ipset.list(allSetNames()))
  const shown = sets.filter(({ set }) => families.includes(familyName(setFamily(set.name))))
  if (service === '') return shown
  return shown
    .map(listing => {
      const { set, entries } = listing
      return {
        ...listing,
        entries: entries.filter(entry => isOfService([entryService(set.name, entry, names)], service)),
      }
    })
    .filter(({ entries }) => entries.length > 0)
}

/** Gives the family of a set. Only the name of a bitmap of ports contains a family. */
function setFamily(name: string): Family {
  return name.startsWith('KUBE-6-') ? 'IPv6' : 'IPv4'
}
