import { systemClock } from '../../base/clock.ts'
import type { Family } from '../../base/ip.ts'
import { lent, readText } from '../../cli/io.ts'
import type { Config } from '../../config/config.ts'
import { HERE, kernelDifference, openNetfilter } from '../../daemon/open.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import { probe } from '../../kernel/xt/probe.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { LAYOUTS } from '../../modes/common/tables.ts'
import type { Finding } from '../../modes/mode.ts'
import { findMode, MODES } from '../../modes/registry.ts'
import type { Difference } from '../../reconcile/dataplane.ts'

/** Checks each kernel feature that a mode needs. Changes nothing. Throws if nf_tables cannot be queried. */
export async function requirements(config: Config): Promise<readonly Finding[]> {
  return [...(await featureFindings(config)), ...(await modeFindings(config))]
}

async function featureFindings(config: Config): Promise<readonly Finding[]> {
  const client = createNftClient({ transport: openNetfilter(), clock: systemClock })
  return await lent(client, async () => {
    const findings: Finding[] = []
    for (const { kind, name, meaning, transaction } of MODES.flatMap(mode => mode.features?.(config) ?? [])) {
      const { works, reason } = await probe(client, transaction)
      findings.push({
        kind: works ? 'ok' : findMode(config.proxyMode).needsFeature(kind) ? 'missing' : 'note',
        subject: name,
        text: works ? meaning : `${meaning}: ${reason}`,
        family: transaction[0]?.family,
      })
    }
    return findings
  })
}

async function modeFindings(config: Config): Promise<readonly Finding[]> {
  const found: Finding[] = []
  for (const mode of MODES) found.push(...((await mode.examine?.(config, { ...HERE, read: readText })) ?? []))
  return found
}

/** Returns the only family that lacks requirements: the mode serves the other one alone. */
export function lackingFamily(findings: readonly Finding[]): NftFamily | undefined {
  const [first, ...others] = findings.filter(({ kind }) => kind === 'missing')
  return others.every(({ family }) => family === first?.family) ? first?.family : undefined
}

/** A family that the kernel cannot program, and what it lacks. */
export interface LeftOut {
  readonly family: Family
  readonly reason: string
}

/** A difference without the objects of a family that the kernel cannot program. */
export interface PossibleDifference extends Difference {
  readonly leftOut?: LeftOut | undefined
}

/** Computes what `run` would change in this machine's kernel. Throws if the mode cannot run here. */
export async function possibleDifference(config: Config, table: FrontendTable): Promise<PossibleDifference> {
  const whole = await kernelDifference(config, table)
  const leftOut = whole.lines.length === 0 ? undefined : await findLeftOut(config)
  if (leftOut === undefined) return whole
  const possible = await kernelDifference(config, table, leftOut.family)
  return possible.lines.length === whole.lines.length ? whole : { ...possible, leftOut }
}

/** Finds the family that the kernel cannot program; undefined where it lacks nothing, or something of both. */
export async function findLeftOut(config: Config): Promise<LeftOut | undefined> {
  const found = await requirements(config)
  const lacking = lackingFamily(found)
  if (lacking === undefined) return undefined
  const missing = found.filter(({ kind }) => kind === 'missing')
  const reason = missing.map(({ subject, text }) => `${subject}: ${text}`).join('; ')
  return { family: LAYOUTS[lacking].model, reason }
}

/** Formats the line for a family that was left out; empty for none. */
export function leftOutText({ leftOut }: Pick<PossibleDifference, 'leftOut'>): string {
  if (leftOut === undefined) return ''
  return `${leftOut.family} Services are not served: this kernel cannot program ${leftOut.family} (${leftOut.reason})\n`
}
