import { editDistance } from '../base/text.ts'
import { parseBool } from './flag.ts'

/** Explicit values of gates; the others keep their defaults. */
export type FeatureGates = Readonly<Record<string, boolean>>

/**
 * Gives the gate that kprobe reads and that `name` probably means; undefined for a gate without effect here, which a newer
 * or an older Kubernetes may know.
 */
export function misspelledGate(name: string): string | undefined {
  const word = name.toLowerCase()
  return [...Object.keys(READ), ...GROUPS].find(gate => editDistance(word, gate.toLowerCase()) < 2)
}

/** The gates that kprobe reads: the default, and the group, AllAlpha or AllBeta, that sets one without an explicit value. */
const READ = {
  AllowServiceExternalIPs: { isOn: true, stage: undefined },
  ComponentFlagz: { isOn: true, stage: 'AllBeta' },
  ComponentStatusz: { isOn: true, stage: 'AllBeta' },
} as const

/** They set gates without an explicit value. */
const GROUPS: readonly string[] = ['AllAlpha', 'AllBeta']

/** Tests whether isGateOn reads a gate. */
export function isRead(name: string): boolean {
  return Object.hasOwn(READ, name) || GROUPS.includes(name)
}

export function isGateOn(gates: FeatureGates, name: keyof typeof READ): boolean {
  const { isOn, stage } = READ[name]
  return gates[name] ?? (stage === undefined ? undefined : gates[stage]) ?? isOn
}

/** Reads `A=true,B=false`, which may be given several times; the last value of a gate applies. */
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
