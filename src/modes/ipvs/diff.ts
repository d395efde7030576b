import { PersistentMap } from '../../base/persistent-map.ts'
import type { Steps } from '../../base/steps.ts'
import { diffRulesets } from '../../kernel/nft/diff.ts'
import type { Operation } from '../../kernel/nft/operation.ts'
import type { Language } from '../../kernel/xt/language.ts'
import { type ChainPhase, diffChains } from './chain-scope.ts'
import { diffServers } from './diff-servers.ts'
import { diffSets } from './diff-sets.ts'
import type { NftSetName } from './layout.ts'
import type { IpvsOptions } from './options.ts'
import type { Phase } from './phases.ts'
import { type IpvsPlan, makePlan } from './plan.ts'
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
    ruleset.transaction.filter(operation => !isDetour(operation)),
    started,
  )
  const detours = splitTransaction(ruleset.transaction.filter(isDetour), started)
  const chains = yield* diffChains(from.chains, to.chains, language)
  const chainPhase = (...kinds: readonly ChainPhase[]): readonly Phase[] => {
    const { kind, operations } = chains
    return kinds.includes(kind) ? [{ kind, operations, nameOfIpset: language.nameOfIpset }] : []
  }
  // The sets record which objects are ours.
  const isDeviceOurs = from.device && from.sets.size > 0
  const phases: readonly Phase[] = [
    { kind: 'add-sets', sets: sets.add },
    { kind: 'add-entries', lists: sets.addEntries },
    ...chainPhase('add-chains'),
    { kind: 'add-rules', transaction: rules.add },
    ...(to.device && !from.device ? [{ kind: 'add-device' as const, device }] : []),
    { kind: 'add-servers', operations: servers.add },
    { kind: 'add-addresses', device, addresses: addresses.add },
    { kind: 'add-detours', transaction: detours.add },
    ...chainPhase('take-chains'),
    { kind: 'remove-detours', transaction: detours.remove },
    { kind: 'remove-addresses', device, addresses: addresses.remove },
    ...(isDeviceOurs && isNothing(to) ? [{ kind: 'remove-device' as const, device }] : []),
    { kind: 'remove-servers', operations: servers.remove },
    { kind: 'remove-rules', transaction: rules.remove },
    ...chainPhase('remove-chains'),
    { kind: 'remove-entries', lists: sets.removeEntries },
    { kind: 'remove-sets', names: sets.remove },
  ]
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

const DETOURS: ReadonlySet<string> = new Set<NftSetName>(['cluster-lists', 'local-lists'])

function isDetour(operation: Operation): boolean {
  const isOfElements = operation.verb === 'add-elements' || operation.verb === 'delete-elements'
  return isOfElements && DETOURS.has(operation.set.name)
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
