import { finishInSlices, slicingOf, systemClock } from '../base/clock.ts'
import { count, oneLine } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { openNetfilter } from '../daemon/open.ts'
import { NF_INET_POST_ROUTING } from '../kernel/nft/constants.ts'
import { listAllTables } from '../kernel/nft/list.ts'
import type { AnyTable } from '../kernel/nft/state.ts'
import { surveyChains } from '../kernel/nft/survey.ts'
import { findMode } from '../modes/registry.ts'
import { Connection } from '../netlink/connection.ts'
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
  const start = systemClock.nowMs()
  const { tables, assumptions } = await readAll()
  const { admission } = memo
  // A Service that memory has no room for means nothing: its ports are not served.
  const admitted = admission === undefined ? snapshot : { ...snapshot, services: admission.services }
  const question = {
    meanings: meaningOf(admitted, config),
    tables,
    ownName: findMode(proxyMode).tableName(serviceProxyName) ?? '',
  }
  const proof = await finishInSlices(prove(question), slicingOf(systemClock))
  const refused = admission?.oversized.size ?? 0
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

interface AllTables {
  readonly tables: readonly AnyTable[]
  readonly assumptions: readonly string[]
}

const OUTSIDE =
  'nothing outside of nf_tables decides about packets: legacy iptables, IPVS, eBPF, tc and routes are not read'

async function readAll(): Promise<AllTables> {
  const connection = new Connection({ transport: openNetfilter(), clock: systemClock })
  try {
    const { value, unsettled } = await listAllTables({ connection, clock: systemClock, ipsets: undefined })
    const others = (await surveyChains(connection)).filter(
      ({ family, chain }) =>
        chain.hook !== undefined &&
        (!IP_FAMILIES.includes(family) || chain.hook.hooknum > NF_INET_POST_ROUTING),
    )
    return {
      tables: value,
      assumptions: [
        OUTSIDE,
        ...others.map(
          ({ family, table, chain }) =>
            `${family} ${table} ${chain.name} lets packets pass: its hook is not read`,
        ),
        ...(unsettled
          ? ['other programs changed nf_tables meanwhile: the rules may be of several moments']
          : []),
      ],
    }
  } finally {
    await connection.close()
  }
}

const IP_FAMILIES: readonly string[] = ['ip', 'ip6', 'inet']

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
