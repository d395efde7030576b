import { expect, it } from 'vitest'
import { configChanges, fieldChanges, needsRestart } from '../../../src/config/config-changes.ts'
import { configFrom, requestFrom } from '../../support/parse-flags.ts'

it('sorts what differs by what it takes to apply it', () => {
  const before = configFrom([])
  const after = configFrom([
    '-v4',
    '--cluster-cidr=10.0.0.0/8',
    '--conntrack-min=7',
    '--metrics-bind-address=0.0.0.0',
    '--kube-api-qps=50',
    '--bind-address-hard-fail',
    '--hostname-override=other',
    '--masquerade-bit=3',
  ])
  expect(configChanges(before, after)).toEqual({
    live: ['detectLocal', 'verbosity', 'conntrack'],
    restart: ['client', 'metricsBindAddress', 'bindAddressHardFail'],
    process: ['nodeName', 'masqueradeBit'],
  })
})

it('classifies every field that a configuration has', () => {
  const config = configFrom(['--proxy-mode=ipvs'])
  const none: Partial<Record<string, unknown>> = Object.fromEntries(
    Object.keys(config).map(field => [field, Symbol('another')]),
  )
  // What one mode has counts while it is that mode, before or after.
  const changed = ['iptables', 'nftables'].flatMap(proxyMode => {
    const { live, restart, process } = configChanges(config, { ...config, ...none, proxyMode })
    const all = [...live, ...restart, ...process]
    expect(new Set(all).size).toBe(all.length)
    return all
  })
  expect([...new Set(changed)].toSorted()).toEqual(Object.keys(config).toSorted())
})

it('names fields of the file that changed, with both values, and those that wait for a restart', () => {
  const before = requestFrom([], 'nftables:\n  masqueradeBit: 14\n')
  const after = requestFrom(
    [],
    'nftables:\n  masqueradeBit: 15\n  masqueradeAll: true\n  syncPeriod: 10s\nnodePortAddresses: [10.0.0.0/8]\n',
  )
  const fields = fieldChanges(before.settings, after.settings)
  expect(fields).toEqual([
    { field: 'nftables.masqueradeAll', from: false, to: true },
    { field: 'nftables.masqueradeBit', from: 14, to: 15 },
    { field: 'nftables.syncPeriod', from: '10m0s', to: '10s' },
    { field: 'nodePortAddresses', from: ['primary'], to: ['10.0.0.0/8'] },
  ])
  const changes = configChanges(before.config, after.config)
  expect(fields.filter(({ field }) => needsRestart(changes, field)).map(({ field }) => field)).toEqual([
    'nftables.masqueradeBit',
  ])
  expect(fieldChanges(after.settings, after.settings)).toEqual([])
})

it.each([
  [[], undefined, undefined],
  [['--proxy-mode=ipvs'], undefined, '--proxy-mode'],
  [['--proxy-mode='], undefined, undefined],
  [[], 'mode: ""\n', undefined],
  [[], 'mode: iptables\n', expect.stringMatching(/^c\.yaml:3:\d+: mode$/)],
])('says what set the mode: flags %j, file %j', (argv, text, origin) => {
  expect(requestFrom(argv, text).settings.origin('mode')).toEqual(origin)
})
