import { systemClock } from '../base/clock.ts'
import { count } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { ADMIN_SOCKET_FLAG } from '../config/daemon-flags.ts'
import { HELP_FLAG, MODEL_FLAGS, outputFlag, WITHOUT_EFFECT } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { printedService } from '../model/printed.ts'
import type { PlanLine } from '../reconcile/dataplane.ts'
import { askDaemon } from './admin-client.ts'
import { type Command, EXIT_DIFFERENT, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { kernelDifference } from './kernel-difference.ts'
import { loadOnce } from './load.ts'
import { writeDocument } from './output.ts'
import { readRequest } from './read-request.ts'
import { tableText } from './table.ts'
import { failureText, usageErrors } from './usage-errors.ts'

const OUTPUTS = ['text', 'json', 'yaml'] as const

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe verify [--config=FILE] [--admin-socket=PATH] [flags]',
      description:
        'Reads the source, computes what it means on this node, and compares that with the kernel and, where a daemon\n' +
        'answers at its admin socket, with what that daemon has computed. Names every Service that differs; changes\n' +
        'nothing. Exits 0 when all agree and 3 when they do not.',
      details: [WITHOUT_EFFECT],
      flags: [...MODEL_FLAGS, ADMIN_SOCKET_FLAG, outputFlag(OUTPUTS), HELP_FLAG],
    }),
  run,
}

/** One Service, or what all share (''), on which the three do not agree. */
export interface Disagreement {
  readonly service: string
  /** What the daemon has computed is not what the source says now. */
  readonly daemon: boolean
  /** Kernel objects that would have to change. */
  readonly kernel: readonly PlanLine[]
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const request = await readRequest(argv, io, { command: 'verify', extra: [outputFlag(OUTPUTS)] })
  if (typeof request === 'number') return request
  const { config, extra } = request
  const output = extra.oneOf('output', OUTPUTS, 'text')
  if (extra.errors.length > 0) return usageErrors(io, 'verify', extra.errors)
  try {
    const { table } = await loadOnce(config, systemClock, io)
    const computed = await daemonServices(config)
    const { lines } = await kernelDifference(config, table)
    const found = disagreements(table, computed, lines)
    const facts = { services: table.services.size, daemon: computed !== undefined, differences: found }
    if (output === 'text') io.out(verifyText(facts, io.colour))
    else await writeDocument(facts, output, io)
    return found.length === 0 ? EXIT_FINE : EXIT_DIFFERENT
  } catch (error) {
    io.err(`kprobe verify: ${failureText(error)}\n`)
    return EXIT_FAILED
  }
}

/** Each Service as the daemon has computed it, as JSON; undefined where none answers. */
async function daemonServices({ adminSocket }: Config): Promise<ReadonlyMap<string, string> | undefined> {
  if (adminSocket === '') return undefined
  const answer = await askDaemon(adminSocket, '/state')
  if (answer.kind === 'absent') return undefined
  const { value } = answer
  const services =
    typeof value === 'object' && value !== null && 'services' in value ? value.services : undefined
  if (!Array.isArray(services)) throw new Error(`${adminSocket}: /state has no list of services`)
  const list: readonly unknown[] = services
  return new Map(
    list.map(each => {
      const isNamed = typeof each === 'object' && each !== null && 'service' in each
      return [isNamed ? String(each.service) : '', JSON.stringify(each)]
    }),
  )
}

/** By name of the Service; what belongs to none comes first. */
export function disagreements(
  table: FrontendTable,
  computed: ReadonlyMap<string, string> | undefined,
  lines: readonly PlanLine[],
): readonly Disagreement[] {
  const kernel = new Map<string, PlanLine[]>()
  for (const line of lines) {
    const service = line.service ?? ''
    const others = kernel.get(service)
    if (others === undefined) kernel.set(service, [line])
    else others.push(line)
  }
  const differing = computed === undefined ? new Set<string>() : differingServices(table, computed)
  return [...new Set([...kernel.keys(), ...differing])]
    .sort()
    .map(service => ({ service, daemon: differing.has(service), kernel: kernel.get(service) ?? [] }))
}

function differingServices(table: FrontendTable, computed: ReadonlyMap<string, string>): Set<string> {
  const differing = new Set<string>()
  for (const [key, frontends] of table.services.entries())
    if (computed.get(key) !== JSON.stringify(printedService(frontends))) differing.add(key)
  for (const key of computed.keys()) if (!table.services.has(key)) differing.add(key)
  return differing
}

export interface VerifyFacts {
  readonly services: number
  /** A daemon answered. */
  readonly daemon: boolean
  readonly differences: readonly Disagreement[]
}

export function verifyText({ services, daemon, differences }: VerifyFacts, colour: boolean): string {
  const rows = differences.map(each => [
    each.service === '' ? SHARED : each.service,
    !daemon ? 'no daemon' : each.daemon ? 'differs' : 'same',
    each.kernel.length === 0 ? 'same' : count(each.kernel.length, 'change'),
  ])
  const table = rows.length === 0 ? '' : tableText(['SERVICE', 'DAEMON', 'KERNEL'], rows, { colour })
  const compared = daemon ? 'source, daemon and kernel' : 'source and kernel (no daemon answers)'
  const named = differences.filter(({ service }) => service !== '').length
  const isShared = named < differences.length
  const what = [...(isShared ? ['what all share'] : []), ...(named > 0 ? [count(named, 'Service')] : [])]
  const verdict = what.length === 0 ? 'agree' : `do not agree on ${what.join(' and ')}`
  return `${table}${compared} ${verdict}; ${count(services, 'Service')} compared\n`
}

const SHARED = '(shared)'
