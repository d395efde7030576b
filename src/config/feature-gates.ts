import { LOCKED_GATES, OPEN_GATES } from './feature-gate-names.ts'
import { parseBool } from './flag-reader.ts'

/** What the configuration says about gates; the others keep their defaults. */
export type FeatureGates = Readonly<Record<string, boolean>>

/** Why kube-proxy refuses to set a gate so; undefined when it does not. */
export function whyNotGate(name: string, value: boolean): string | undefined {
  const locked = LOCKED_GATES.get(name)
  if (locked === undefined) return OPEN_GATES.has(name) ? undefined : 'unrecognized feature gate'
  return locked === value ? undefined : `cannot be set to ${value}: the feature is locked to ${locked}`
}

/** Gates that something in this program asks for. */
type GateName =
  | 'AllowServiceExternalIPs'
  | 'ComponentFlagz'
  | 'ComponentStatusz'
  | 'LoggingAlphaOptions'
  | 'NativeHistograms'

/** Which of AllAlpha and AllBeta speaks for a gate that is not named itself. */
const STAGES: Readonly<Record<GateName, 'AllAlpha' | 'AllBeta' | undefined>> = {
  AllowServiceExternalIPs: undefined,
  ComponentFlagz: 'AllBeta',
  ComponentStatusz: 'AllBeta',
  LoggingAlphaOptions: 'AllAlpha',
  NativeHistograms: 'AllAlpha',
}

export function isGateOn(gates: FeatureGates, name: GateName): boolean {
  const stage = STAGES[name]
  const byStage = stage === undefined ? undefined : gates[stage]
  return gates[name] ?? byStage ?? OPEN_GATES.get(name) ?? false
}

/** Reads `A=true,B=false`, as often as it is given; the later mention of a gate counts. */
export function parseGates(
  texts: readonly string[],
): { readonly gates: FeatureGates } | { readonly problem: string } {
  const gates: [string, boolean][] = []
  for (const pair of texts.flatMap(text => text.split(','))) {
    if (pair === '') continue
    const equals = pair.indexOf('=')
    if (equals < 0) return { problem: `${JSON.stringify(pair)} is not written NAME=true or NAME=false` }
    const value = parseBool(pair.slice(equals + 1).trim())
    if (value === undefined) return { problem: `${JSON.stringify(pair)} does not end in true or false` }
    gates.push([pair.slice(0, equals).trim(), value])
  }
  return { gates: Object.fromEntries(gates) }
}
