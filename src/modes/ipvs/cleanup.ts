import { count } from '../../base/text.ts'
import type { IpvsClient } from '../../kernel/ipvs/client.ts'
import type { Observed } from '../../kernel/nft/state.ts'
import { placeOfTable } from '../../kernel/xt/scope-operation.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import type { Cleaned, CleanupContext } from '../mode.ts'
import { isIpvsChain } from '../xt-common/ipvs-chain-names.ts'
import { hasIpvsTable, withIpvsKernel } from './kernel.ts'
import { createIpvsPlane } from './plane.ts'
import { readIpvsState } from './read.ts'
import { DEFAULT_IPVS_OPTIONS } from './settings.ts'
import type { IpvsState } from './state.ts'

export async function cleanIpvs(context: CleanupContext): Promise<Cleaned> {
  return { removed: removedTexts(await removeIpvs('kprobe', context)), foreign: [] }
}

/** Removes the same objects of kube-proxy's IPVS mode. */
export async function cleanKubeProxyIpvs(context: CleanupContext): Promise<readonly string[]> {
  return removedTexts(await removeIpvs('kube-proxy', context))
}

/** The program whose objects are removed. Both use the same ipsets; our own table shows that they are ours. */
type IpvsOwner = 'kprobe' | 'kube-proxy'

/**
 * Removes at once the virtual servers, addresses and ipsets of an IPVS mode, and our table. Only objects that
 * the ipsets record are removed. Gives the removed state; undefined when there was none, or when it belongs
 * to the other owner. Throws when the kernel rejects a change.
 */
async function removeIpvs(owner: IpvsOwner, context: CleanupContext): Promise<IpvsState | undefined> {
  const { clock, proxy } = context
  // A named proxy cannot use this mode.
  if (proxy !== undefined) return undefined
  const isOurs = await hasIpvsTable(context)
  if (isOurs !== (owner === 'kprobe')) return undefined
  return await withIpvsKernel(context, async opened => {
    const { ipvs } = opened
    const kernel = { ...opened, ipvs: hasIpvs(ipvs) ? ipvs : withoutServers(ipvs) }
    const plane = createIpvsPlane({ ...kernel, clock, options: DEFAULT_IPVS_OPTIONS })
    try {
      const state = await readIpvsState(kernel)
      if (state.sets.size === 0 && state.ruleset.tables.length === 0) return undefined
      await plane.cleanup()
      return state
    } finally {
      await plane.close()
    }
  })
}

function hasIpvs(ipvs: IpvsClient): boolean {
  try {
    ipvs.info()
    return true
  } catch (error) {
    if (error instanceof NetlinkError && error.code === 'ENOENT') return false
    throw error
  }
}

/** Makes a client for a kernel without IPVS, where ipsets and addresses may remain all the same. */
function withoutServers(ipvs: IpvsClient): IpvsClient {
  return {
    info: () => ipvs.info(),
    timeouts: () => ipvs.timeouts(),
    setTimeouts: timeouts => ipvs.setTimeouts(timeouts),
    close: () => ipvs.close(),
    servers: () => Promise.resolve([]),
    destinations: servers => Promise.resolve(servers.map(() => [])),
    commit: () => Promise.resolve({ unknown: undefined, failures: [], bytes: 0, messages: 0 }),
  }
}

/** Lists the removed objects, one item a line. Pure. */
function removedTexts(state: IpvsState | undefined): readonly string[] {
  if (state === undefined) return []
  const { servers, sets, addresses, ruleset, chains } = state
  return [
    ...(servers.size === 0 ? [] : [count(servers.size, 'IPVS virtual server')]),
    ...(addresses.size === 0
      ? []
      : [
          `addresses of the device ${DEFAULT_IPVS_OPTIONS.deviceName} (${addresses.size}), and the device if it has no other`,
        ]),
    ...ruleset.tables.map(({ family, name }) => `table ${family} ${name}`),
    ...(chains.kind === 'observed' ? chainTexts(chains.observed) : []),
    ...(sets.size === 0 ? [] : [count(sets.size, 'ipset')]),
  ]
}

function chainTexts(observed: Observed): readonly string[] {
  return [...observed].flatMap(([key, { chains }]) => {
    const table = placeOfTable(key)?.table
    const ours = [...chains.keys()].filter(name => table !== undefined && isIpvsChain(table, name))
    return ours.length === 0
      ? []
      : [`${count(ours.length, 'chain')}, and the rules that led to them, in table ${key}`]
  })
}
