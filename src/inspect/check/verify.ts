import { systemClock } from '../../base/clock.ts'
import { append } from '../../base/collections.ts'
import { textAt } from '../../base/plain-data.ts'
import { count, oneLine } from '../../base/text.ts'
import { OUTPUTS, outputFlag, writeDocument } from '../../cli/document.ts'
import { EXIT_DIFFERENT, EXIT_FINE, EXIT_UNKNOWN, planLine, tableText } from '../../cli/io.ts'
import type { Config } from '../../config/config.ts'
import { type FlagSpec, flags, parseBool } from '../../config/flag.ts'
import { whyNotProvable } from '../../config/modes.ts'
import { readSocketPath } from '../../config/own-flags.ts'
import { HERE } from '../../daemon/open.ts'
import { modesOf } from '../../daemon/retirement.ts'
import { serviceJson } from '../../daemon/saved/snapshot-json.ts'
import { whyUnforwarded } from '../../kernel/sysctl/sysctls.ts'
import { isJson, type Json } from '../../model/fields.ts'
import type { FrontendTable, ServiceFrontends } from '../../model/frontend.ts'
import { cappedSnapshot } from '../../model/memory-caps.ts'
import { isTraceTable } from '../../modes/common/trace-table.ts'
import { findMode, MODE_DEVICE } from '../../modes/registry.ts'
import { ipvsAssumptions } from '../../proof/evaluate/ipvs.ts'
import { demandSettled, type KernelRules, readRules } from '../../proof/kernel-rules.ts'
import type { FamilyMeaning } from '../../proof/meaning.ts'
import { meaningOf } from '../../proof/meanings.ts'
import { forwardedFamilies } from '../../proof/premises.ts'
import { type Proof, prove } from '../../proof/prove.ts'
import type { PlanLine } from '../../reconcile/dataplane.ts'
import { demandAnswer, servicesIn } from '../admin-client.ts'
import { type Loaded, withLoaded } from '../load.ts'
import { type ModelRequest, modelCommand } from '../model-request.ts'
import { paletteOf } from '../palette.ts'
import {
  findLeftOut,
  type LeftOut,
  leftOutText,
  type PossibleDifference,
  possibleDifference,
} from './requirements.ts'

const FLAGS: readonly FlagSpec[] = [
  outputFlag(OUTPUTS),
  ...flags({
    '--prove': 'follow every packet through the rules in the kernel (nftables, iptables and IPVS mode)',
  }),
]

export const command = modelCommand({
  name: 'verify',
  description:
    'Computes the wanted state of this node, and compares it with the kernel and with the state that the daemon at\n' +
    'its admin socket has computed. Names the Services that differ, with their first difference; changes nothing.\n' +
    'Exits 0 when all agree, and 3 when they differ. With --prove it follows every packet through the rules of all\n' +
    'programs in the kernel, and compares its fate with the one that Kubernetes specifies; exit code 4 if rules that it\n' +
    'cannot follow may decide, or if this node does not forward packets.',
  flags: FLAGS,
  read: reader => ({
    output: reader.oneOf('output', OUTPUTS, 'text'),
    isProof: isProofAsked(reader.text('prove')),
  }),
  async run({ output, isProof }, request, io) {
    const why = isProof ? whyNotProvable(request.config) : undefined
    if (why !== undefined) throw new Error(`--prove: nothing is proved: ${why}`)
    return await withLoaded(request, io, async (loaded, { progress }) => {
      progress.begin(isProof ? PROVING : 'comparing with the daemon and the kernel')
      const found = await (isProof
        ? proof(request.config, loaded, io.color)
        : comparison(request, loaded, io.color))
      if (output === 'text') io.out(found.text)
      else await writeDocument(found.facts, output, io)
      return found.exitCode
    })
  },
})

/** One Service, or the shared rules (''), on which source, daemon and kernel differ. */
interface Disagreement {
  readonly service: string
  /** The first difference of the daemon's state; undefined if there is none. */
  readonly daemon: string | undefined
  readonly kernel: readonly PlanLine[]
}

/** The values that the daemon knows work here, too. */
function isProofAsked(text: string | undefined): boolean {
  return text !== undefined && text !== 'off' && parseBool(text) !== false
}

const PROVING = 'following packets through the rules in the kernel'

async function comparison({ config, daemon, extra }: ModelRequest, { table }: Loaded, color: boolean) {
  const computed = await daemonServices(daemon ?? readSocketPath(extra))
  const { lines, leftOut } = await possibleDifference(config, table)
  const leftovers = await leftoverLines(config)
  const facts = {
    services: table.services.size,
    source: daemon === undefined,
    daemon: computed !== undefined,
    leftOut,
    differences: disagreements(table, computed, [...leftovers, ...lines]),
  }
  const exitCode = facts.differences.length === 0 ? EXIT_FINE : EXIT_DIFFERENT
  return { facts, text: verifyText(facts, color), exitCode }
}

/** Names what the kernel holds of other modes: their Services may still answer, also deleted ones. */
async function leftoverLines(config: Config): Promise<readonly PlanLine[]> {
  const lines: PlanLine[] = []
  for (const proxyMode of modesOf(config).filter(mode => mode !== config.proxyMode)) {
    const context = { ...HERE, config: { ...config, proxyMode } }
    const found = await findMode(proxyMode).retire(context, AbortSignal.abort(), false)
    if (typeof found === 'object') lines.push({ verb: 'remove', object: found.kept, service: undefined })
  }
  return lines
}

async function proof(config: Config, loaded: Loaded, color: boolean) {
  const facts = await proveKernel(config, loaded)
  const exitCode = facts.wrong > 0 ? EXIT_DIFFERENT : facts.isProved ? EXIT_FINE : EXIT_UNKNOWN
  return { facts, text: proofText(facts, color), exitCode }
}

async function daemonServices(socket: string): Promise<ReadonlyMap<string, unknown> | undefined> {
  if (socket === '') return undefined
  const services = servicesIn(await demandAnswer(socket, '/state'), socket)
  return new Map(services.map(each => [textAt(each, 'service'), each]))
}

/** Lists the differences by Service name; the shared rules come first. */
export function disagreements(
  table: FrontendTable,
  computed: ReadonlyMap<string, unknown> | undefined,
  lines: readonly PlanLine[],
): readonly Disagreement[] {
  const kernel = new Map<string, PlanLine[]>()
  for (const line of lines) append(kernel, line.service ?? '', line)
  const differing = computed === undefined ? new Map<string, string>() : differingServices(table, computed)
  return [...new Set([...kernel.keys(), ...differing.keys()])]
    .sort()
    .map(service => ({ service, daemon: differing.get(service), kernel: kernel.get(service) ?? [] }))
}

/** Gives the first difference of each Service of the daemon, by name. */
function differingServices(
  table: FrontendTable,
  computed: ReadonlyMap<string, unknown>,
): ReadonlyMap<string, string> {
  const differing = new Map<string, string>()
  for (const [key, frontends] of table.services.entries()) {
    const difference = serviceDifference(frontends, computed.get(key))
    if (difference !== undefined) differing.set(key, difference)
  }
  for (const key of computed.keys())
    if (!table.services.has(key)) differing.set(key, 'only the daemon knows the Service')
  return differing
}

function serviceDifference(frontends: ServiceFrontends, its: unknown): string | undefined {
  const ours = serviceJson(frontends)
  if (its === undefined) return 'the daemon does not know the Service'
  if (JSON.stringify(ours) === JSON.stringify(its)) return undefined
  const [here, there] = [leavesOf(ours), leavesOf(its)]
  const surplus = there.find(leaf => !here.includes(leaf))
  const missing = here.find(leaf => !there.includes(leaf))
  if (surplus !== undefined) return `the daemon has ${surplus}`
  return missing === undefined ? 'the daemon has another order' : `the daemon lacks ${missing}`
}

/** Lists every frontend, text and number in a value; numbers carry the name of their field. */
function leavesOf(value: unknown, field = ''): readonly string[] {
  if (typeof value === 'string') return [value]
  if (isJson(value) && typeof value.port === 'number') return [placeText(value)]
  if (typeof value !== 'object' || value === null) return [`${field} ${String(value)}`]
  return Object.entries(value).flatMap(([name, item]) => leavesOf(item, name))
}

/** Formats a frontend or an endpoint: `ClusterIP 10.96.0.1:80 internal/cluster from 192.0.2.0/24`. */
function placeText({ kind, ip = '', port, route, sourceRanges, local }: Json): string {
  const address = String(ip).includes(':') ? `[${ip}]` : ip
  const words = isJson(route) ? Object.values(route).join('/') : ''
  const from = Array.isArray(sourceRanges) ? `from ${sourceRanges.join(',')}` : ''
  return [kind ?? '', `${address}:${port}`, words, from, local === true ? 'local' : '']
    .filter(Boolean)
    .join(' ')
}

interface VerifyFacts extends Pick<PossibleDifference, 'leftOut'> {
  readonly services: number
  /** The command read the source; otherwise the objects are those of the daemon. */
  readonly source: boolean
  /** The command queried the daemon. */
  readonly daemon: boolean
  readonly differences: readonly Disagreement[]
}

/** Services that the text names at most. */
const ROWS_MAX = 20

export function verifyText(facts: VerifyFacts, color: boolean): string {
  const { services, differences } = facts
  const rows = differences.slice(0, ROWS_MAX).map(each => rowOf(each, facts.daemon))
  const heading = ['SERVICE', 'DAEMON', 'KERNEL', 'FIRST DIFFERENCE']
  const table = rows.length === 0 ? '' : tableText(heading, rows, { color })
  const more = differences.length - rows.length
  const rest = more > 0 ? `and ${count(more, 'more Service')}; -o json lists all\n` : ''
  const paint = paletteOf({ color })[differences.length === 0 ? 'good' : 'bad']
  const verdict = paint(`${comparedText(facts)} ${verdictText(services, differences)}`)
  return `${table}${rest}${leftOutText(facts)}${verdict}\n`
}

function rowOf({ service, daemon, kernel }: Disagreement, isAsked: boolean): readonly string[] {
  const [first] = kernel
  return [
    service === '' ? '(shared)' : service,
    !isAsked ? 'not queried' : daemon === undefined ? 'same' : 'differs',
    kernel.length === 0 ? 'same' : count(kernel.length, 'change'),
    first === undefined ? (daemon ?? '') : planLine(first),
  ]
}

function comparedText({ source, daemon }: VerifyFacts): string {
  if (!source) return 'daemon (source not read) and kernel'
  return daemon ? 'source, daemon and kernel' : 'source and kernel (daemon not queried)'
}

function verdictText(services: number, differences: readonly Disagreement[]): string {
  if (differences.length === 0) return `agree; ${count(services, 'Service')} compared`
  const named = differences.filter(({ service }) => service !== '').length
  const what = [
    ...(named < differences.length ? ['shared rules'] : []),
    ...(named > 0 ? [`${named} of ${count(services, 'Service')}`] : []),
  ]
  const isInKernel = differences.some(({ kernel }) => kernel.length > 0)
  return `differ: ${what.join(' and ')}${isInKernel ? '; run `kprobe plan` for details' : ''}`
}

interface ProofFacts extends Proof {
  readonly mode: string
  readonly services: number
  readonly milliseconds: number
  readonly isProved: boolean
  /** The assumptions of the proof, beside rules, that do not hold. */
  readonly brokenPremises: readonly string[]
  readonly leftOut: LeftOut | undefined
}

/** Proves the rules of the kernel against the objects. Throws if these cannot be read. */
async function proveKernel(config: Config, { snapshot, memo }: Loaded): Promise<ProofFacts> {
  const { proxyMode, serviceProxyName } = config
  const mode = findMode(proxyMode)
  const proving = mode.proving?.(config)
  const start = systemClock.nowMs()
  const { ipvs, tables, ...held } = await readKernel(proving?.usesIpvs === true)
  const its = ipvs === undefined ? snapshot : { ...snapshot, localIps: ipvs.ownAddresses }
  const admitted = cappedSnapshot(its, memo.caps)
  const all = meaningOf(admitted, { ...config, ...(proving && { promises: proving.promises }) })
  const ownName = mode.tableName(serviceProxyName) ?? ''
  const proofOf = (meanings: typeof all) => prove({ meanings, tables, ownName, owns: proving?.owns, ipvs })
  const whole = proofOf(all)
  const leftOut = whole.wrong === 0 ? undefined : await findLeftOut(config)
  const meanings = provable(all, leftOut)
  const proof = leftOut === undefined ? whole : proofOf(meanings)
  const refused = memo.caps.refused.size
  const brokenPremises = forwardedFamilies(meanings).flatMap(family => whyUnforwarded(family) ?? [])
  const left = refused === 0 ? [] : [`${count(refused, 'Service')} without room in memory must reject`]
  return {
    mode: proxyMode,
    services: admitted.services.size,
    milliseconds: Math.round(systemClock.nowMs() - start),
    isProved: proof.wrong + proof.unknown + brokenPremises.length === 0,
    brokenPremises,
    leftOut,
    ...proof,
    assumptions: [...proof.assumptions, ...held.assumptions, ...(proving?.assumes ?? []), ...left],
  }
}

/** Leaves out the family that the kernel cannot program: its Services are not served, and no rule could be right. */
export function provable(
  meanings: readonly FamilyMeaning[],
  leftOut: LeftOut | undefined,
): readonly FamilyMeaning[] {
  return meanings.filter(({ family }) => family !== leftOut?.family)
}

/** Reads the rules of this network namespace over sockets of its own. Throws where they never rest. */
async function readKernel(usesIpvs: boolean): Promise<KernelRules> {
  const held = await readRules({ ...HERE, usesIpvs, device: MODE_DEVICE, isPassing: isTraceTable })
  demandSettled(held)
  const { ipvs, assumptions } = held
  return { ...held, assumptions: [...assumptions, ...(ipvs === undefined ? [] : ipvsAssumptions(ipvs))] }
}

function proofText(facts: ProofFacts, color: boolean): string {
  const { wrong, unknown, differences, unknowns, assumptions, brokenPremises } = facts
  const { classes, packets, milliseconds, services } = facts
  const found = [...differences, ...unknowns].map(({ name, packet, expected, kernel, rule, doubt }) =>
    [
      `${name}`,
      packet,
      `Kubernetes: ${expected}`,
      `the kernel: ${kernel}`,
      ...(rule === undefined ? [] : [`decided by ${rule}`]),
      ...(doubt === undefined ? [] : [`not certain: it depends on ${doubt}`]),
    ]
      .map((line, index) => `${index === 0 ? '' : '  '}${oneLine(line)}\n`)
      .join(''),
  )
  const rest = wrong - differences.length
  const more = rest > 0 ? `and ${rest === 1 ? '1 more class' : `${rest} more classes`}\n` : ''
  const size = `${classes} classes of packets (${packets.toPrecision(2)} combinations of addresses, protocols and ports) of ${count(services, 'Service')} in ${milliseconds} ms`
  const verdict =
    wrong > 0
      ? `NOT proved: ${wrong} of ${size} differ${unknown > 0 ? `, and ${unknown} may differ` : ''}`
      : unknown > 0
        ? `not proved: ${unknown} of ${size} may differ, by rules that kprobe cannot follow`
        : brokenPremises.length > 0
          ? `not proved: the rules treat ${size} as Kubernetes specifies, but a premise does not hold`
          : `proved: ${size}`
  const paint = paletteOf({ color })[wrong > 0 ? 'bad' : facts.isProved ? 'good' : 'warning']
  const broken = brokenPremises.map(text => `premise that does not hold: ${text}\n`).join('')
  return `${found.join('')}${more}${leftOutText(facts)}${broken}assumed:\n${assumptions.map(text => `  ${oneLine(text)}\n`).join('')}${paint(verdict)}\n`
}
