import { execFileSync } from 'node:child_process'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import type { IptablesPlan } from '../../src/modes/iptables/diff.ts'
import { createIptablesPlane } from '../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../src/modes/iptables/settings.ts'
import type { IptablesState } from '../../src/modes/iptables/state.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { foreignLines, savedLines, writeForeignRules } from '../support/foreign-rules.ts'
import { PlaneRig } from '../support/plane-rig.ts'

const netfilter = () => openNetlink({ protocol: NETLINK_NETFILTER })

let client: NftClient
let rig: PlaneRig<IptablesState, IptablesPlan>

beforeAll(() => run('nft', 'flush', 'ruleset'))
beforeEach(() => {
  writeForeignRules()
  const transport = netfilter()
  client = createNftClient({ transport, clock: systemClock })
  const writers = { openTransport: netfilter, own: transport.portId }
  const plane = createIptablesPlane({ client, options: DEFAULT_IPTABLES_OPTIONS, writers })
  rig = new PlaneRig({ plane, clock: systemClock })
})
afterEach(async () => {
  await rig.close()
  await client.close()
})
afterEach(() => run('nft', 'flush', 'ruleset'))
afterAll(() => run('nft', 'flush', 'ruleset'))

function run(program: string, ...args: string[]): string {
  return execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
}

const nat = (...args: string[]) => run('iptables-nft', '-t', 'nat', ...args)

const OBJECTS = [
  {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'ns', name: 'web' },
    spec: {
      type: 'ClusterIP',
      clusterIP: '10.96.0.1',
      clusterIPs: ['10.96.0.1'],
      ipFamilies: ['IPv4'],
      ports: [{ port: 80, protocol: 'TCP' }],
    },
  },
  {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { namespace: 'ns', name: 'web', labels: { 'kubernetes.io/service-name': 'web' } },
    addressType: 'IPv4',
    endpoints: [{ addresses: ['10.180.0.1'], conditions: { ready: true } }],
    ports: [{ name: '', port: 8080, protocol: 'TCP' }],
  },
]

const JUMP = ['-m', 'comment', '--comment', 'kubernetes service portals', '-j', 'KUBE-SERVICES']
const HUNG_INTO_THE_WAY =
  'delete chain ip nat KUBE-PROXY-CANARY; add chain ip nat KUBE-PROXY-CANARY { type nat hook prerouting priority -90; }'
const healed = () => rig.of('healed').length

describe('healing', () => {
  it('puts right within a second what iptables did: a flushed table, a deleted jump, an edited chain, a base chain', async () => {
    await rig.sync(OBJECTS)
    const before = savedLines().toSorted()
    const deeds = [
      () => nat('-F', 'KUBE-SERVICES'),
      () => nat('-D', 'PREROUTING', ...JUMP),
      () => nat('-I', 'KUBE-MARK-MASQ', '-j', 'RETURN'),
      () => run('nft', HUNG_INTO_THE_WAY),
    ]
    for (const [i, deed] of deeds.entries()) {
      deed()
      await rig.until(() => healed() > i, 1_000)
      expect(savedLines().toSorted()).toEqual(before)
    }
  })

  it('names who does it again and again, and does not look for what is none of our business', async () => {
    await rig.sync(OBJECTS)
    const foreign = foreignLines()
    for (let count = 1; count <= 3; count++) {
      nat('-D', 'PREROUTING', ...JUMP)
      await rig.until(() => healed() >= count, 1_000)
    }
    nat('-D', 'PREROUTING', ...JUMP)
    await rig.until(() => rig.of('foreign-commit').some(({ damage }) => damage), 1_000)
    expect(rig.of('foreign-commit').find(({ damage }) => damage)?.process).toMatch(/tables/)
    await rig.until(() => healed() >= 4, 1_000)
    await rig.wait(300)
    const told = rig.of('foreign-commit').length
    nat('-A', 'DOCKER', '-s', '192.0.2.7', '-j', 'RETURN')
    nat('-A', 'PREROUTING', '-s', '192.0.2.7', '-j', 'RETURN')
    nat('-D', 'PREROUTING', '-s', '192.0.2.7', '-j', 'RETURN')
    nat('-D', 'DOCKER', '-s', '192.0.2.7', '-j', 'RETURN')
    await rig.wait(500)
    expect(rig.of('foreign-commit').slice(told)).toEqual([])
    expect(foreignLines()).toEqual(foreign)
  })
})
