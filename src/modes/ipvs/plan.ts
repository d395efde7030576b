import { familyOf, formatIp } from '../../base/ip.ts'
import type { GroupedEntries } from '../../kernel/ipset/operation.ts'
import { entryText } from '../../kernel/ipset/print.ts'
import type { IpvsOperation } from '../../kernel/ipvs/operation.ts'
import { describeObject } from '../../kernel/ipvs/send.ts'
import type { Ruleset } from '../../kernel/nft/state.ts'
import type { Plan, PlanLine } from '../../reconcile/dataplane.ts'
import { countChanges, describeTransaction } from '../common/describe-transaction.ts'
import { countScopeChanges, describeScope } from '../xt-common/describe-scope.ts'
import { PHASE_ORDER, type Phase, type SetChange, servicesOf } from './phases.ts'
import type { IpvsState } from './state.ts'

/** The operations for four subsystems of the kernel. The subsystems are independent of each other. */
export interface IpvsPlan extends Plan<IpvsState> {
  /** The phases with operations, in the order in which they are sent. */
  readonly phases: readonly Phase[]
}

export function makePlan(
  given: readonly Phase[],
  { after, complete }: Pick<IpvsPlan, 'after' | 'complete'>,
): IpvsPlan {
  const rank = ({ kind }: Phase) => PHASE_ORDER.indexOf(kind)
  const counted = given.map(phase => ({ phase, changes: changesOf(phase) })).filter(each => each.changes > 0)
  const phases = counted.map(({ phase }) => phase).sort((a, b) => rank(a) - rank(b))
  return {
    phases,
    empty: phases.length === 0,
    changes: counted.reduce((sum, { changes }) => sum + changes, 0),
    after,
    complete,
    // IPVS keeps its own persistence, and virtual servers are changed in place.
    rebuilds: false,
    describe: () => describePhases(phases, after.ruleset),
  }
}

/** Counts the objects that a phase adds, changes or removes. */
function changesOf(phase: Phase): number {
  switch (phase.kind) {
    case 'add-sets':
      return phase.sets.length
    case 'remove-sets':
      return phase.names.length
    case 'add-entries':
    case 'remove-entries':
      return phase.lists.reduce((count, { entries }) => count + entries.length, 0)
    case 'add-rules':
    case 'remove-rules':
    case 'add-redirects':
    case 'remove-redirects':
      return countChanges(phase.transaction)
    case 'add-chains':
    case 'take-chains':
    case 'remove-chains':
      return countScopeChanges(phase.operations)
    case 'add-device':
    case 'remove-device':
      return 1
    case 'add-servers':
    case 'remove-servers':
      return phase.operations.length
    case 'add-addresses':
    case 'remove-addresses':
      return phase.addresses.length
  }
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
  const verb = phase.kind.startsWith('remove-') ? 'remove' : 'add'
  const shared = (object: string): PlanLine => ({ verb, object, service: undefined })
  switch (phase.kind) {
    case 'add-sets':
      return phase.sets.map(setLine)
    case 'remove-sets':
      return phase.names.map(name => shared(`ipset ${name}`))
    case 'add-entries':
    case 'remove-entries':
      return phase.lists.flatMap(list => entryLines(verb, list))
    case 'add-rules':
    case 'remove-rules':
    case 'add-redirects':
    case 'remove-redirects':
      return describeTransaction(phase.transaction, after)
    case 'add-chains':
    case 'take-chains':
    case 'remove-chains':
      return describeScope(phase.operations, phase.nameOfIpset)
    case 'add-device':
    case 'remove-device':
      return [shared(`link ${phase.device} type dummy`)]
    case 'add-servers':
    case 'remove-servers':
      return phase.operations.map(serverLine)
    case 'add-addresses':
    case 'remove-addresses':
      return phase.addresses.map(({ ip, services }) => {
        const prefix = familyOf(ip) === 'IPv4' ? 32 : 128
        return { verb, object: `address ${formatIp(ip)}/${prefix} dev ${phase.device}`, service: services[0] }
      })
  }
}

function setLine({ set, replaces }: SetChange): PlanLine {
  const size = replaces === undefined ? set.maxElements : `${replaces.set.maxElements} -> ${set.maxElements}`
  const object = `ipset ${set.name} ${set.type} maxelem ${size}`
  return { verb: replaces === undefined ? 'add' : 'change', object, service: undefined }
}

function entryLines(verb: PlanLine['verb'], { set, entries, groups }: GroupedEntries): readonly PlanLine[] {
  return entries.map((entry, i) => {
    const object = `entry ${set.name} ${entryText(set, entry)}`
    return { verb, object, service: servicesOf(groups[i] ?? '')[0] }
  })
}

function serverLine(operation: IpvsOperation): PlanLine {
  const verb = 'isNew' in operation ? (operation.isNew ? 'add' : 'change') : 'remove'
  const object = [describeObject(operation), ...detailOf(operation)].join(' ')
  return { verb, object, service: servicesOf(operation.group)[0] }
}

function detailOf(operation: IpvsOperation): readonly string[] {
  if (operation.verb === 'set-destination') return [`weight ${operation.destination.weight}`]
  if (operation.verb !== 'set-server') return []
  const { scheduler, timeoutS } = operation.server
  return timeoutS === 0 ? [scheduler] : [scheduler, `persistent ${timeoutS}`]
}
