import { finishInSlices, slicingOf, systemClock } from '../base/clock.ts'
import { count, oneLine } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { openNetfilter } from '../daemon/open.ts'
import { admittedSnapshot } from '../model/admission.ts'
import { isTraceTable } from '../modes/common/trace-table.ts'
import { findMode } from '../modes/registry.ts'
import { Connection } from '../netlink/connection.ts'
import { type KernelRules, readRules } from '../proof/kernel-rules.ts'
import { meaningOf } from '../proof/meanings.ts'
import { type Proof, prove } from '../proof/prove.ts'
import type { Loaded } from './load.ts'

/** A proof, for machines. */
interface ProofFacts extends Proof {
  readonly mode: string
  readonly services: number
  readonly milliseconds: number
  readonly isProved: boolean
}

/** Proves the rules of the kernel against the objects. Throws if the kernel cannot be read. */
export async function proveKernel(config: Config, { snapshot, memo }: Loaded): Promise<ProofFacts> {
  const { proxyMode, serviceProxyName } = config
  const mode = findMode(proxyMode)
  const proving = mode.proving?.(config)
  const start = systemClock.nowMs()
  const { tables, assumptions } = await readOnce()
  const admitted = admittedSnapshot(snapshot, memo.admission)
  const question = {
    meanings: meaningOf(admitted, { ...config, ...(proving && { promises: proving.promises }) }),
    tables,
    ownName: mode.tableName(serviceProxyName) ?? '',
    owns: proving?.owns,
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
    assumptions: [...proof.assumptions, ...assumptions, ...left],
  }
}

/** Reads the rules of this network namespace over a socket of its own. */
async function readOnce(): Promise<KernelRules> {
  const connection = new Connection({ transport: openNetfilter(), clock: systemClock })
  try {
    return await readRules({ connection, clock: systemClock, isPassing: isTraceTable })
  } finally {
    await connection.close()
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
