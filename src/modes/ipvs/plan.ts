import { familyOf, formatIp } from '../../base/ip.ts'
import type { GroupedEntries } from '../../kernel/ipset/operation.ts'
import { entryText } from '../../kernel/ipset/print.ts'
import type { IpvsOperation } from '../../kernel/ipvs/operation.ts'
import { describeObject } from '../../kernel/ipvs/send.ts'
import type { Ruleset } from '../../kernel/nft/state.ts'
import type { Plan, PlanLine } from '../../reconcile/dataplane.ts'
import { countChanges, describeTransaction } from '../common/describe-transaction.ts'
import { countScopeChanges, describeScope } from '../xt-common/describe-scope.ts'
import { isWork, type Phase, type SetChange, servicesOf, sizeOf } from './phases.ts'
import type { IpvsState, PlacedAddress } from './state.ts'

/** The operations for four subsystems of the kernel. The subsystems are independent of each other. */
export interface IpvsPlan extends Plan<IpvsState> {
  /** The phases with operations, in the order in which they are sent. */
  readonly phases: readonly Phase[]
}

export function makePlan(
  given: readonly Phase[],
  { after, complete }: Pick<IpvsPlan, 'after' | 'complete'>,
): IpvsPlan {
  const phases = given.filter(isWork)
  return {
    phases,
    empty: phases.length === 0,
    changes: phases.reduce((count, phase) => count + changesOf(phase), 0),
    after,
    complete,
    // IPVS keeps its own persistence, and virtual servers are changed in place.
    rebuilds: false,
    describe: () => describePhases(phases, after.ruleset),
  }
}

/**
 * Counts the changes of a phase. An element whose data changes is deleted and added in one phase: one change.
 */
function changesOf(phase: Phase): number {
  if ('transaction' in phase) return countChanges(phase.transaction)
  return 'nameOfIpset' in phase ? countScopeChanges(phase.operations) : sizeOf(phase)
}

/** Describes the phases: shared objects first, then one Service after the other. */
function* describePhases(phases: readonly Phase[], after: Ruleset): IterableIterator<PlanLine> {
  const byService = new Map<string, PlanLine[]>()
  for (const phase of phases) {
    for (const line of linesOf(phase, after)) {
      if (line.service === undefined) {
        yield line
        continue
      }
      const lines = byService.get(line.service)
      if (lines === undefined) byService.set(line.service, [line])
      else lines.push(line)
    }
  }
  for (const [, lines] of [...byService].sort(([a], [b]) => (a < b ? -1 : 1))) yield* lines
}

function linesOf(phase: Phase, after: Ruleset): Iterable<PlanLine> {
  switch (phase.kind) {
    case 'add-sets':
      return describeSets(phase.sets)
    case 'add-entries':
      return describeEntries('add', phase.lists)
    case 'add-rules':
    case 'remove-rules':
    case 'add-detours':
    case 'remove-detours':
      return describeTransaction(phase.transaction, after)
    case 'add-chains':
    case 'take-chains':
    case 'remove-chains':
      return describeScope(phase.operations, phase.nameOfIpset)
    case 'add-device':
      return describeDevice('add', phase.device)
    case 'remove-device':
      return describeDevice('remove', phase.device)
    case 'add-servers':
    case 'remove-servers':
      return describeServers(phase.operations)
    case 'add-addresses':
      return describeAddresses('add', phase)
    case 'remove-addresses':
      return describeAddresses('remove', phase)
    case 'remove-entries':
      return describeEntries('remove', phase.lists)
    case 'remove-sets':
      return describeSetsGone(phase.names)
  }
}

function* describeSets(sets: readonly SetChange[]): IterableIterator<PlanLine> {
  for (const { set, replaces } of sets) {
    const size =
      replaces === undefined ? set.maxElements : `${replaces.set.maxElements} -> ${set.maxElements}`
    const object = `ipset ${set.name} ${set.type} maxelem ${size}`
    yield { verb: replaces === undefined ? 'add' : 'change', object, service: undefined }
  }
}

function* describeSetsGone(names: readonly string[]): IterableIterator<PlanLine> {
  for (const name of names) yield { verb: 'remove', object: `ipset ${name}`, service: undefined }
}

function* describeEntries(
  verb: 'add' | 'remove',
  lists: readonly GroupedEntries[],
): IterableIterator<PlanLine> {
  for (const { set, entries, groups } of lists) {
    for (const [i, entry] of entries.entries())
      yield {
        verb,
        object: `entry ${set.name} ${entryText(set, entry)}`,
        service: servicesOf(groups[i] ?? '')[0],
      }
  }
}

function* describeServers(operations: readonly IpvsOperation[]): IterableIterator<PlanLine> {
  for (const operation of operations) {
    const detail = detailOf(operation)
    const object = `${describeObject(operation)}${detail === '' ? '' : ` ${detail}`}`
    yield { verb: verbOf(operation), object, service: servicesOf(operation.group)[0] }
  }
}

function verbOf(operation: IpvsOperation): PlanLine['verb'] {
  if (!('isNew' in operation)) return 'remove'
  return operation.isNew ? 'add' : 'change'
}

function detailOf(operation: IpvsOperation): string {
  switch (operation.verb) {
    case 'set-server': {
      const { scheduler, timeoutS } = operation.server
      return timeoutS === 0 ? scheduler : `${scheduler} persistent ${timeoutS}`
    }
    case 'set-destination':
      return `weight ${operation.destination.weight}`
    case 'delete-server':
    case 'delete-destination':
      return ''
  }
}

function* describeDevice(verb: 'add' | 'remove', device: string): IterableIterator<PlanLine> {
  yield { verb, object: `link ${device} type dummy`, service: undefined }
}

function* describeAddresses(
  verb: 'add' | 'remove',
  { device, addresses }: { readonly device: string; readonly addresses: readonly PlacedAddress[] },
): IterableIterator<PlanLine> {
  for (const { ip, services } of addresses) {
    const prefix = familyOf(ip) === 'IPv4' ? 32 : 128
    yield { verb, object: `address ${formatIp(ip)}/${prefix} dev ${device}`, service: services[0] }
  }
}
