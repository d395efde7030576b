import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { command } from '../../../src/api/command.ts'
import type { FlagSpec } from '../../../src/config/flag.ts'
import { RUN_FLAGS } from '../../../src/config/flags.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { IS_QUICK } from '../../support/runs.ts'
import { endpoint, node, service, slice } from '../model/objects.ts'

let folder: string

/** Whatever a flag of a data plane could change: addresses of each kind, NodePorts, zones, policies, schedulers. */
const OBJECTS = [
  node({ ips: ['192.168.1.7', 'fd01::7'], zone: 'a', podCIDRs: ['10.1.0.0/24'] }),
  service('web', {
    type: 'LoadBalancer',
    externalIPs: ['203.0.113.1', '192.168.1.7', '127.0.0.1'],
    externalTrafficPolicy: 'Local',
    healthCheckNodePort: 32_000,
    sessionAffinity: 'ClientIP',
    loadBalancerSourceRanges: ['10.0.0.0/8'],
    ports: [{ port: 80, nodePort: 30_080 }],
  }),
  service(
    'lb',
    { type: 'LoadBalancer', clusterIP: '10.96.0.2', ports: [{ port: 80, nodePort: 30_081 }] },
    { status: { loadBalancer: { ingress: [{ ip: '198.51.100.9' }] } } },
  ),
  service(
    'other',
    { clusterIP: '10.96.0.3' },
    { metadata: { annotations: { 'kprobe.io/ipvs-scheduler': 'wlc' } } },
  ),
  slice('s', 'web', [
    endpoint('10.1.0.1', { nodeName: 'here', zone: 'a' }),
    endpoint('10.1.0.2', { zone: 'b' }),
  ]),
  slice('l', 'lb', [endpoint('10.1.0.3', { nodeName: 'there', zone: 'b' })]),
]

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'kprobe-api-help-'))
  const list = { apiVersion: 'v1', kind: 'List', items: OBJECTS }
  writeFileSync(join(folder, 'objects.json'), JSON.stringify(list))
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** What one state looks like with these flags. */
async function printed(...flags: string[]): Promise<{ code: number; out: string }> {
  const io = new FakeIo()
  const code = await command.run([`--source=file:${join(folder, 'objects.json')}`, '--print', ...flags], io)
  return { code, out: io.stdout }
}

const VALUES: Readonly<Record<string, readonly string[]>> = {
  'admin-socket': ['/nowhere/admin.sock'],
  api: ['unix:///nowhere/api.sock'],
  backend: ['dry-run'],
  balance: ['maglev'],
  'cluster-cidr': ['10.1.0.0/16'],
  'detect-local-mode': ['NodeCIDR', 'ClusterCIDR'],
  'healthz-bind-address': ['127.0.0.1:1'],
  'ipvs-rules': ['iptables', 'nftables'],
  'ipvs-scheduler': ['wlc'],
  'log-json-split-stream': ['false'],
  'log-text-split-stream': ['false'],
  'nodeport-addresses': ['primary', '192.168.0.0/16'],
  'pod-bridge-interface': ['br0'],
  'pod-interface-name-prefix': ['veth'],
  'proxy-mode': ['iptables', 'ipvs', 'userspace', 'nftables'],
  'show-hidden-metrics-for-version': ['1.35'],
  'state-dir': ['/nowhere'],
  'ui-address': ['1'],
  vmodule: ['a=1'],
}

/** What a flag cannot be without. */
function companions(name: string): readonly string[] {
  if (!name.startsWith('ui-')) return []
  return ['--ui-address=1', ...(name.startsWith('ui-tls-') ? UI_TLS : [])]
}

const UI_TLS = ['cert', 'key', 'client-ca'].map(part => `--ui-tls-${part}=0`)

const BY_KIND: Readonly<Record<FlagSpec['kind'], readonly string[]>> = {
  bool: ['true', 'false'],
  integer: ['7'],
  number: ['7'],
  duration: ['7s'],
  list: ['192.0.2.0/24'],
  text: ['0'],
}

it.skipIf(IS_QUICK)(
  'names every flag that changes what is printed; of no other flag of kprobe run is there any effect',
  async () => {
    const help = command.help()({ all: true })
    const before = await printed()
    expect(before.code).toBe(0)
    expect(before.out.split('\n')).toHaveLength(OBJECTS.length - 2)
    const others = RUN_FLAGS.filter(({ name }) => !new RegExp(`^  (-\\w, )?--?${name}( |$)`, 'm').test(help))
    expect(others.length).toBeGreaterThan(40)
    const given = others.flatMap(({ name, kind }) =>
      (VALUES[name] ?? BY_KIND[kind]).map(value => [...companions(name), `--${name}=${value}`]),
    )
    const changing: (readonly string[])[] = []
    for (const flags of given) {
      const { code, out } = await printed(...flags)
      if (code !== 0 || out !== before.out) changing.push(flags)
    }
    expect(changing).toEqual([])
  },
)

it.each(['--allowed-external-cidrs=192.0.2.0/24', '--allowed-load-balancer-cidrs=192.0.2.0/24'])(
  'heeds %s, as its help says',
  async flag => {
    const { code, out } = await printed(flag)
    expect(code).toBe(0)
    expect(out).not.toBe((await printed()).out)
    expect(command.help()({ all: true })).toContain(`  ${flag.slice(0, flag.indexOf('='))} `)
  },
)

it('has the flags of the log in its help, which it heeds as all do', () => {
  for (const flag of ['--logging-format', '-v'])
    expect(command.help()({ all: true })).toMatch(new RegExp(`^  ${flag} `, 'm'))
})
