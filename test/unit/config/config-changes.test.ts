import { expect, it } from 'vitest'
import type { Config } from '../../../src/config/config.ts'
import { configChanges } from '../../../src/config/config-changes.ts'
import { parseFlags } from '../../../src/config/parse-flags.ts'

function configOf(...argv: string[]): Config {
  const parsed = parseFlags(argv, { hostName: 'node' })
  if (parsed.kind === 'errors') throw new Error(JSON.stringify(parsed.errors))
  return parsed.value.config
}

it('finds nothing between two readings of the same', () => {
  const argv = ['--cluster-cidr=10.0.0.0/8', '--feature-gates=AllAlpha=true']
  expect(configChanges(configOf(...argv), configOf(...argv))).toEqual({ live: [], restart: [], process: [] })
})

it('sorts what differs by what it takes to apply it', () => {
  const before = configOf()
  const after = configOf(
    '-v4',
    '--cluster-cidr=10.0.0.0/8',
    '--conntrack-min=7',
    '--metrics-bind-address=0.0.0.0',
    '--kube-api-qps=50',
    '--bind-address-hard-fail',
    '--hostname-override=other',
    '--masquerade-bit=3',
  )
  expect(configChanges(before, after)).toEqual({
    live: ['detectLocal', 'verbosity', 'conntrack'],
    restart: ['client', 'metricsBindAddress', 'bindAddressHardFail'],
    process: ['nodeName', 'masqueradeBit'],
  })
})

it('classifies every field that a configuration has', () => {
  const config = configOf('--proxy-mode=ipvs')
  const none: Partial<Record<string, unknown>> = Object.fromEntries(
    Object.keys(config).map(field => [field, Symbol('another')]),
  )
  const { live, restart, process } = configChanges(config, {
    ...config,
    ...none,
    // What one mode has counts while it is that mode, before or after.
    proxyMode: 'iptables',
  })
  expect([...live, ...restart, ...process].toSorted()).toEqual(Object.keys(config).toSorted())
})
