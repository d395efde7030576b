import { finishInSlices, slicingOf, systemClock } from '../base/clock.ts'
import type { Ip } from '../base/ip.ts'
import { count, oneLine } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { KERNEL } from '../daemon/open.ts'
import { ipvsAssumptions } from '../kernel/evaluate/ipvs.ts'
import type { IpvsHeld } from '../kernel/ipvs/state.ts'
import { decodeRaw } from '../kernel/nft/raw-decode.ts'
import { admittedSnapshot } from '../model/admission.ts'
import { isTraceTable } from '../modes/common/trace-table.ts'
import { findMode, MODE_DEVICE } from '../modes/registry.ts'
import { assumptionsOf, demandSettled, type KernelRules, readRules } from '../proof/kernel-rules.ts'
import { meaningOf } from '../proof/meanings.ts'
import { type Proof, prove } from '../proof/prove.ts'
import { type Bundle, RULES_FILE } from './bundle.ts'
import { outsideIn } from './bundle-kernel.ts'
import type { Loaded } from './load.ts'

interface ProofFacts extends Proof {
  readonly mode: string
  readonly services: number
  readonly milliseconds: number
  readonly isProved: boolean
}

interface ProofOf {
  /** The file that has the rules; undefined for those of this network namespace. */
  readonly bundle: Bundle | undefined
  /** The objects are of a source that knows no addresses of the file's machine. */
  readonly takesAddresses: boolean
}

/** Proves the rules of the kernel, or of a file, against the objects. Throws if these cannot be read. */
export async function proveKernel(
  config: Config,
  { snapshot, memo }: Loaded,
  { bundle, takesAddresses }: ProofOf,
): Promise<ProofFacts> {
  const { proxyMode, serviceProxyName } = config
  const mode = findMode(proxyMode)
  const proving = mode.proving?.(config)
  const start = systemClock.nowMs()
  const usesIpvs = proving?.usesIpvs === true
  const held = bundle === undefined ? await readKernel(usesIpvs) : kernelIn(bundle, usesIpvs)
  const { tables, assumptions, ipvs, ownAddresses } = held
  const isLive = bundle === undefined
  const its =
    (isLive || takesAddresses) && ownAddresses !== undefined
      ? { ...snapshot, localIps: ownAddresses }
      : snapshot
  const admitted = admittedSnapshot(its, memo.admission)
  const question = {
    meanings: meaningOf(admitted, { ...config, ...(proving && { promises: proving.promises }) }),
    tables,
    ownName: mode.tableName(serviceProxyName) ?? '',
    owns: proving?.owns,
    ipvs,
  }
  const proof = await finishInSlices(prove(question), slicingOf(systemClock))
  const refused = memo.admission?.oversized.size ?? 0
  const left = refused === 0 ? [] : [`${count(refused, 'Service')} without room in memory must reject`]
  return {
    mode: proxyMode,
    services: admitted.services.size,
    milliseconds: Math.round(systemClock.nowMs() - start),
    isProved: proof.wrong === 0,
    ...proof,
    assumptions: [
      ...proof.assumptions,
      ...assumptions,
      ...(proving?.assumes ?? []),
      ...(takesAddresses && ownAddresses === undefined ? [ADDRESSES_OF_THIS_MACHINE] : []),
      ...left,
    ],
  }
}

const ADDRESSES_OF_THIS_MACHINE =
  'the machine of the file has the addresses of this one: the bundle, of an older build, does not say its own'

interface HeldKernel extends Pick<KernelRules, 'tables' | 'assumptions'> {
  readonly ipvs: IpvsHeld | undefined
  readonly ownAddresses?: readonly Ip[] | undefined
}

/** Reads the rules of this network namespace over sockets of its own. Throws where they never rest. */
async function readKernel(usesIpvs: boolean): Promise<HeldKernel> {
  const held = await readRules({
    sockets: KERNEL,
    clock: systemClock,
    usesIpsets: usesIpvs,
    usesIpvs,
    device: MODE_DEVICE,
    isPassing: isTraceTable,
  })
  demandSettled(held)
  const { ipvs, assumptions } = held
  return {
    ...held,
    ownAddresses: ipvs?.ownAddresses,
    assumptions: [...assumptions, ...(ipvs === undefined ? [] : ipvsAssumptions(ipvs))],
  }
}

/** Gives the rules of a bundle. Throws an Error that says what it lacks. */
function kernelIn(bundle: Bundle, usesIpvs: boolean): HeldKernel {
  const bytes = bundle.files.get(RULES_FILE)
  if (bytes === undefined) throw new Error(`--kernel: the bundle has no ${RULES_FILE}`)
  const { ipvs, ownAddresses, names, lacking } = outsideIn(bundle)
  if (usesIpvs && ipvs === undefined)
    throw new Error(`--kernel: the bundle says nothing of IPVS and ipsets: ${lacking}`)
  const { tables, chains } = decodeRaw(bytes, number => names.get(number))
  return {
    tables: tables.filter(({ name }) => !isTraceTable(name)),
    ownAddresses,
    assumptions: [
      ...assumptionsOf(chains, usesIpvs),
      'the rules are those of the file, and of one moment',
      ...(usesIpvs && ipvs !== undefined ? ipvsAssumptions(ipvs) : []),
    ],
    ipvs: usesIpvs ? ipvs : undefined,
  }
}

export function proofText(facts: ProofFacts): string {
  const { wrong, differences, classes, packets, milliseconds, assumptions, services } = facts
  const found = differences.map(({ name, packet, expected, kernel, rule }) =>
    [
      `${name}`,
      packet,
      `Kubernetes: ${expected}`,
      `the kernel: ${kernel}`,
      ...(rule === undefined ? [] : [`decided by ${rule}`]),
    ]
      .map((line, index) => `${index === 0 ? '' : '  '}${oneLine(line)}\n`)
      .join(''),
  )
  const rest = wrong - differences.length
  const more = rest > 0 ? `and ${rest === 1 ? '1 more class' : `${rest} more classes`}\n` : ''
  const size = `${classes} classes of packets (${packets.toPrecision(2)} combinations of addresses, protocols and ports) of ${count(services, 'Service')} in ${milliseconds} ms`
  const verdict = wrong === 0 ? `proved: ${size}` : `NOT proved: ${wrong} of ${size} differ`
  return `${found.join('')}${more}assumed:\n${assumptions.map(text => `  ${oneLine(text)}\n`).join('')}${verdict}\n`
}
