import { PersistentMap } from '../../base/persistent-map.ts'
import type { Steps } from '../../base/steps.ts'
import { diffRulesets } from '../../kernel/nft/diff.ts'
import type { Operation } from '../../kernel/nft/operation.ts'
import type { Language } from '../../kernel/xt/language.ts'
import { diffChains } from './chain-scope.ts'
import { diffServers } from './diff-servers.ts'
import { diffSets } from './diff-sets.ts'
import type { NftSetName } from './layout.ts'
import type { Phase } from './phases.ts'
import { type IpvsPlan, makePlan } from './plan.ts'
import type { IpvsOptions } from './settings.ts'
import { splitTransaction } from './split-transaction.ts'
import type { IpvsState, PlacedAddress } from './state.ts'

const NO_LATE_SETS = { lateSets: new Set<string>() } as const

interface DiffOptions extends Pick<IpvsOptions, 'deviceName' | 'excludeCidrs'> {
  /** The codec of rules in the tables of iptables. */
  readonly language: Language
}

/**
 * Makes the phases that lead from one state to the other. The state afterwards includes draining real
 * servers. They cause no further commit: the upkeep removes them when their connections have ended.
 */
export function* diffStates(
  from: IpvsState,
  to: IpvsState,
  { deviceName: device, excludeCidrs, language }: DiffOptions,
): Steps<IpvsPlan> {
  const sets = yield* diffSets(from, to)
  const servers = yield* diffServers(from.servers, to.servers, excludeCidrs)
  const addresses = diffAddresses(from.addresses, to.addresses)
  const ruleset = yield* diffRulesets(from.ruleset, to.ruleset, NO_LATE_SETS)
  const observed = from.frontends === undefined
  const started = { ruleset: from.ruleset, observed }
  const rules = splitTransaction(
    ruleset.transaction.filter(operation => !isRedirect(operation)),
    started,
  )
  const redirects = splitTransaction(ruleset.transaction.filter(isRedirect), started)
  const chains = yield* diffChains(from.chains, to.chains, language)
  const phases: Phase[] = [
    { kind: 'add-sets', sets: sets.add },
    { kind: 'remove-sets', names: sets.remove },
    { kind: 'add-entries', lists: sets.addEntries },
    { kind: 'remove-entries', lists: sets.removeEntries },
    { kind: 'add-rules', transaction: rules.add },
    { kind: 'remove-rules', transaction: rules.remove },
    { kind: 'add-redirects', transaction: redirects.add },
    { kind: 'remove-redirects', transaction: redirects.remove },
    { ...chains, nameOfIpset: language.nameOfIpset },
    { kind: 'add-servers', operations: servers.add },
    { kind: 'remove-servers', operations: servers.remove },
    { kind: 'add-addresses', device, addresses: addresses.add },
    { kind: 'remove-addresses', device, addresses: addresses.remove },
  ]
  if (to.device && !from.device) phases.push({ kind: 'add-device', device })
  // The sets record which objects are ours.
  const isDeviceOurs = from.device && from.sets.size > 0
  if (isDeviceOurs && isNothing(to)) phases.push({ kind: 'remove-device', device })
  return makePlan(phases, {
    after: afterwards(to, {
      servers: servers.after,
      sets: sets.after,
      ruleset: ruleset.after,
      device: to.device || (from.device && !isNothing(to)),
    }),
    complete: ruleset.complete,
  })
}

/** Whether a state contains nothing of ours, as opposed to a state without Services. */
function isNothing({ sets, device }: IpvsState): boolean {
  return sets.size === 0 && !device
}

/** Maps whose elements redirect packets to another virtual server. */
const REDIRECTS: ReadonlySet<string> = new Set<NftSetName>(['cluster-lists', 'local-lists'])

function isRedirect(operation: Operation): boolean {
  const isOfElements = operation.verb === 'add-elements' || operation.verb === 'delete-elements'
  return isOfElements && REDIRECTS.has(operation.set.name)
}

/** Gives the state after the plan: the wanted state itself where nothing differs. */
function afterwards(
  to: IpvsState,
  held: Pick<IpvsState, 'servers' | 'sets' | 'ruleset' | 'device'>,
): IpvsState {
  const isSame =
    held.servers === to.servers &&
    held.sets === to.sets &&
    held.ruleset === to.ruleset &&
    held.device === to.device
  return isSame ? to : { ...to, ...held }
}

function diffAddresses(
  from: IpvsState['addresses'],
  to: IpvsState['addresses'],
): { readonly add: readonly PlacedAddress[]; readonly remove: readonly PlacedAddress[] } {
  const add: PlacedAddress[] = []
  const remove: PlacedAddress[] = []
  for (const [, before, after] of PersistentMap.differences(from, to)) {
    if (before === undefined && after !== undefined) add.push(after)
    else if (before !== undefined && after === undefined) remove.push(before)
  }
  return { add, remove }
}
