import { expect, it } from 'vitest'
import { parse as parseYaml } from 'yaml'
import { parseRequest, type RunRequest } from '../../../src/config/load-config.ts'
import { goYaml, publishedConfig, writtenConfig } from '../../../src/config/written-config.ts'
import { requestFrom } from '../../support/parse-flags.ts'

function requestOf(...argv: string[]): RunRequest {
  return requestFrom(argv, undefined, 'Host')
}

it('writes the fields that kube-proxy does not have only when they are set', () => {
  const linesOf = (...flags: string[]) =>
    writtenConfig(requestOf('--write-config-to=f', ...flags).settings).split('\n')
  const lines = linesOf('--conntrack-tcp-timeout-time-wait=45s')
  expect(lines).toContain('  tcpTimeWaitTimeout: 45s')
  expect(lines.filter(line => /tcpFinWait|stateDir|nodeCondition|prove|syncShare/.test(line))).toEqual([])
  const more = linesOf('--state-dir=/var/lib/x', '--node-condition', '--prove=full', '--sync-share=5')
  const wanted = ['stateDir: /var/lib/x', 'nodeCondition: ServiceProxyReady', 'prove: full', 'syncShare: 5']
  expect(more).toEqual(expect.arrayContaining(wanted))
})

it('writes what flags say', () => {
  const { settings } = requestOf(
    '--write-config-to=f',
    '--bind-address=::',
    '--kube-api-qps=0.30000001',
    '--feature-gates=AllAlpha=false',
    '--log-text-split-stream',
    '--log-json-info-buffer-size=1.5Ki',
    '--vmodule=a=1,b=2',
    '--nodeport-addresses=10.0.0.0/8,fd00::/8',
    '--ipvs-exclude-cidrs=',
    '--hostname-override= ABC',
    '--masquerade-all',
  )
  const lines = writtenConfig(settings).split('\n')
  expect(lines).toEqual(
    expect.arrayContaining([
      "bindAddress: '::'",
      '  qps: 0.3',
      'featureGates:',
      '  AllAlpha: false',
      '      infoBufferSize: 1.5Ki',
      '      splitStream: true',
      '  vmodule:',
      '  - filePattern: a',
      '    verbosity: 1',
      '- fd00::/8',
      '  excludeCIDRs: []',
      'hostnameOverride: abc',
    ]),
  )
  expect(publishedConfig(settings)).toMatchObject({
    iptables: { masqueradeAll: false },
    nftables: { masqueradeAll: true },
  })
})

it('leaves ports off, since kube-proxy does not add the deprecated ones either', () => {
  const written = (...argv: string[]) => writtenConfig(requestOf('--write-config-to=f', ...argv).settings)
  expect(written('--healthz-port=0')).toBe(written())
})

it('writes what another YAML reader reads alike, and what means the same when it is read again', () => {
  const { settings, config } = requestOf('--cluster-cidr=10.0.0.0/8,fd00::/8', '--conntrack-udp-timeout=1.5s')
  const text = writtenConfig(settings)
  expect(parseYaml(text)).toEqual(publishedConfig(settings))
  const again = parseRequest([], { hostName: 'Host' }, { path: 'f', text })
  expect(again).toMatchObject({ kind: 'ok', value: { config, warnings: [] } })
  expect(again.kind === 'ok' && writtenConfig(again.value.settings)).toBe(text)
})

// Each as Go's library prints it: what would be read as something else has double quotes, what has a place in YAML's
// grammar has single ones.
it.each([
  ['', '""'],
  ['abc', 'abc'],
  ['0.0.0.0:10256', '0.0.0.0:10256'],
  ['[::]:10256', "'[::]:10256'"],
  ['::', "'::'"],
  ['::1', '::1'],
  ['0', '"0"'],
  ['1e3', '"1e3"'],
  ['10:30', '"10:30"'],
  ['yes', '"yes"'],
  ['null', '"null"'],
  ['2001-01-01', '"2001-01-01"'],
  ['a: b', "'a: b'"],
  ['#x', "'#x'"],
  ["it's", "it's"],
  ["'x", "'''x'"],
  ['a\tb', '"a\\tb"'],
])('prints the text %j', (text, printed) => {
  expect(goYaml({ a: text })).toBe(`a: ${printed}\n`)
})

it('sorts names, and does not indent lists', () => {
  expect(goYaml({ b: [{ z: 1, x: null }, 'text'], a: { c: [], d: {} }, e: false })).toBe(
    'a:\n  c: []\n  d: {}\nb:\n- x: null\n  z: 1\n- text\ne: false\n',
  )
})
