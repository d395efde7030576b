import { familyOf, formatIp } from '../../base/ip.ts'
import type { GroupedEntries } from '../../kernel/ipset/operation.ts'
import { entryText } from '../../kernel/ipset/print.ts'
import { describeObject } from '../../kernel/ipvs/describe.ts'
import type { IpvsOperation } from '../../kernel/ipvs/operation.ts'
import type { PlanLine } from '../../reconcile/dataplane.ts'
import { type SetChange, servicesOf } from './phases.ts'
import type { PlacedAddress } from './state.ts'

export function* describeSets(sets: readonly SetChange[]): IterableIterator<PlanLine> {
  for (const { set, replaces } of sets) {
    const size =
      replaces === undefined ? set.maxElements : `${replaces.set.maxElements} -> ${set.maxElements}`
    const object = `ipset ${set.name} ${set.type} maxelem ${size}`
    yield { verb: replaces === undefined ? 'add' : 'change', object, service: undefined }
  }
}

export function* describeSetsGone(names: readonly string[]): IterableIterator<PlanLine> {
  for (const name of names) yield { verb: 'remove', object: `ipset ${name}`, service: undefined }
}

export function* describeEntries(
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

export function* describeServers(operations: readonly IpvsOperation[]): IterableIterator<PlanLine> {
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

export function* describeDevice(verb: 'add' | 'remove', device: string): IterableIterator<PlanLine> {
  yield { verb, object: `link ${device} type dummy`, service: undefined }
}

export function* describeAddresses(
  verb: 'add' | 'remove',
  { device, addresses }: { readonly device: string; readonly addresses: readonly PlacedAddress[] },
): IterableIterator<PlanLine> {
  for (const { ip, services } of addresses) {
    const prefix = familyOf(ip) === 'IPv4' ? 32 : 128
    yield { verb, object: `address ${formatIp(ip)}/${prefix} dev ${device}`, service: services[0] }
  }
}
