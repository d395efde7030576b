import { writeFileSync } from 'node:fs'
import { afterEach, beforeAll, describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import { listAllTables } from '../../src/kernel/nft/list.ts'
import type { NftablesState } from '../../src/modes/nftables/state.ts'
import { Connection } from '../../src/netlink/connection.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { type Ended, runInProcess, tool } from '../support/command.ts'
import { EXAMPLES } from '../support/daemon.ts'
import { openIptablesPlane } from '../support/iptables-plane.ts'
import { forwardPackets, freshNetns } from '../support/lab/netns.ts'
import { change, commitAll, computeIn, IPTABLES, NFTABLES, openClient, planeOn } from '../support/pipeline.ts'
import { proofOf } from '../support/proof.ts'
import { PROVING } from '../support/proof-iptables.ts'
import { LOCAL_IPS, LOGGED, scenarioOf } from '../support/scenario.ts'
import { allStops } from '../support/walk.ts'

const SOURCE = [
  `--source=file:${EXAMPLES}`,
  '--hostname-override=example-node',
  '--cluster-cidr=10.244.0.0/16,fd00:10:244::/64',
]

const nft = (...args: readonly string[]): string => tool('nft', ...args)
const connected = (): Connection =>
  new Connection({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock: systemClock })
const prove = (...more: string[]): Promise<Ended> => runInProcess(['verify', '--prove', ...SOURCE, ...more])

beforeAll(() => {
  freshNetns()
  forwardPackets()
})
afterEach(() => void nft('flush', 'ruleset'))

it('every step of every scenario is proved from what the kernel holds', async () => {
  const client = openClient()
  const connection = connected()
  let state: NftablesState | undefined
  for (const { name, computed } of allStops(NFTABLES)) {
    const { config, resolved } = computed
    const plane = planeOn(client, config)
    state = (await plane.observe()).state
    const wanted = finish(plane.render(resolved.table, { base: state, without: new Set() }))
    await commitAll(plane, state, wanted)
    const { value } = await listAllTables({ connection, clock: systemClock, ipsets: undefined })
    const { differences, wrong } = proofOf(config, resolved.snapshot, value)
    expect(differences, name).toEqual([])
    expect(wrong).toBe(0)
  }
  await connection.close()
  await client.close()
})

it.each(LOGGED)('rules that log are proved from what the kernel holds: %s', async file => {
  const client = openClient()
  const connection = connected()
  const { config, steps } = scenarioOf(file)
  const logging = { ...config, logRejects: 5 }
  const computed = steps.reduce(change<NftablesState>, computeIn(NFTABLES, logging, LOCAL_IPS))
  const plane = planeOn(client, logging)
  const { state } = await plane.observe()
  const { table, snapshot } = computed.resolved
  await commitAll(plane, state, finish(plane.render(table, { base: state, without: new Set() })))
  expect(nft('list', 'ruleset')).toContain('group 5')
  const { value } = await listAllTables({ connection, clock: systemClock, ipsets: undefined })
  const { differences, wrong } = proofOf(config, snapshot, value)
  expect([differences, wrong]).toEqual([[], 0])
  await connection.close()
  await client.close()
})

it('every step of every scenario of iptables mode is proved from what the kernel holds', async () => {
  const connection = connected()
  for (const { name, computed } of allStops(IPTABLES)) {
    const { config, resolved } = computed
    const { client, plane } = openIptablesPlane(config)
    const { state } = await plane.observe()
    const wanted = finish(plane.render(resolved.table, { base: state, without: new Set() }))
    await commitAll(plane, state, wanted)
    const { value } = await listAllTables({ connection, clock: systemClock, ipsets: undefined })
    const { differences, wrong } = proofOf(config, resolved.snapshot, value, PROVING)
    expect(differences, name).toEqual([])
    expect(wrong).toBe(0)
    await client.close()
  }
  await connection.close()
})

describe('kprobe verify --prove in iptables mode', () => {
  const IN_MODE = '--proxy-mode=iptables'
  const iptables = (...args: readonly string[]): string => tool('iptables-nft', ...args)

  it('exits 4 beside a rule of another program that it cannot follow and that may decide', async () => {
    await runInProcess(['run', '--once', IN_MODE, ...SOURCE])
    iptables('-I', 'FORWARD', '-p', 'tcp', '-m', 'multiport', '--dports', '22,9000:9100', '-j', 'DROP')
    iptables('-I', 'FORWARD', '-m', 'limit', '--limit', '3/min', '-j', 'DROP')
    const { code, out } = await prove(IN_MODE)
    expect(out).toContain(
      'not certain: it depends on ip filter FORWARD, rule 1: cannot trace the expression limit\n',
    )
    expect(out).toContain(
      'assuming that ip filter FORWARD, rule 2 is intentional: it also matches packets that are not for Services',
    )
    expect(out).toMatch(
      /^not proved: \d+ of \d+ classes of packets .* may differ, by rules that kprobe cannot/m,
    )
    expect(code).toBe(4)
  })

  it('follows rules by chance, by counting and by marks, and sources that others translate', async () => {
    await runInProcess(['run', '--once', IN_MODE, ...SOURCE])
    const forward = async (...rule: readonly string[]) => {
      iptables('-I', 'FORWARD', ...rule)
      const { code, out } = await prove(IN_MODE)
      iptables('-D', 'FORWARD', ...rule)
      return [code, /decided by ip filter FORWARD, rule 1/.test(out)]
    }
    const nth = ['-m', 'statistic', '--mode', 'nth', '--every', '3', '--packet', '0']
    expect(await forward(...nth, '-j', 'DROP')).toEqual([3, true])
    expect(await forward(...nth, '-j', 'LOG')).toEqual([0, false])
    const never = ['-m', 'statistic', '--mode', 'random', '!', '--probability', '1']
    expect(await forward(...never, '-j', 'DROP')).toEqual([0, false])
    expect(await forward('-m', 'mark', '--mark', '0x4000/0x4000', '-j', 'REJECT')).toEqual([3, true])
    expect(await forward('-m', 'connmark', '--mark', '1', '-j', 'DROP')).toEqual([0, false])
    const snat = async (to: string) => {
      iptables('-t', 'nat', '-I', 'POSTROUTING', '-p', 'tcp', '-j', 'SNAT', '--to-source', to)
      const { code, out } = await prove(IN_MODE)
      iptables('-t', 'nat', '-D', 'POSTROUTING', '-p', 'tcp', '-j', 'SNAT', '--to-source', to)
      return { code, out }
    }
    // An address of this node is what masquerading chooses, also where nothing is to be masqueraded.
    expect(await snat('192.0.2.10')).toMatchObject({
      code: 3,
      out: expect.stringContaining(', masqueraded\n'),
    })
    expect(await snat('203.0.113.9')).toMatchObject({
      code: 3,
      out: expect.stringContaining(', with a source of another machine\n'),
    })
  })

  it('names the rule of ours that is gone, and the rule of another program that decides', async () => {
    await runInProcess(['run', '--once', IN_MODE, ...SOURCE])
    iptables('-t', 'nat', '-F', 'KUBE-SERVICES')
    const flushed = await prove(IN_MODE)
    expect(flushed.out).toMatch(/Kubernetes: one of 2 endpoints\n {2}the kernel: pass\n/)
    expect(flushed.code).toBe(3)
    await runInProcess(['run', '--once', IN_MODE, ...SOURCE])
    expect((await prove(IN_MODE)).code).toBe(0)
    iptables('-I', 'FORWARD', '-p', 'tcp', '--dport', '8000:8100', '-j', 'DROP')
    const dropped = await prove(IN_MODE)
    expect(dropped.out).toContain('decided by ip filter FORWARD, rule 1\n')
    expect(dropped.out).toContain('the kernel: drop on the way to 10.244.0.21:8080\n')
    expect(dropped.code).toBe(3)
  })
})

describe('kprobe verify --prove', () => {
  it('exits 0 where every packet meets its fate, with what is assumed', async () => {
    await runInProcess(['run', '--once', ...SOURCE])
    const { code, out } = await prove()
    expect(out).toMatch(
      /^assumed:\n {2}each packet is the first of its connection[\s\S]*^proved: \d+ classes of packets/m,
    )
    expect(code).toBe(0)
    // As the flag of the daemon has it.
    expect(await runInProcess(['verify', '--prove=full', ...SOURCE])).toMatchObject({ code: 0, err: '' })
    expect((await runInProcess(['verify', '--prove=off', ...SOURCE])).out).toContain('agree; ')
    expect(await runInProcess(['verify', '--prove=now', ...SOURCE])).toMatchObject({
      code: 2,
      err: expect.stringContaining('--prove: "now" is not one of off, full'),
    })
  })

  it('exits 4 where the rules are right, and the node does not forward', async () => {
    await runInProcess(['run', '--once', ...SOURCE])
    writeFileSync('/proc/sys/net/ipv6/conf/all/forwarding', '0')
    try {
      const { code, out } = await prove()
      expect(out).toMatch(
        /^premise that does not hold: net\.ipv6\.conf\.all\.forwarding is 0, so this node drops packets .*\nassumed:/,
      )
      expect(out).toMatch(
        /^not proved: the rules treat \d+ classes .* as Kubernetes specifies, but a premise does not hold$/m,
      )
      expect(code).toBe(4)
    } finally {
      forwardPackets()
    }
  })

  it('names a rule of ours that is wrong, although all rules are there', async () => {
    await runInProcess(['run', '--once', ...SOURCE])
    nft('insert', 'rule', 'ip', 'kube-proxy', 'services', 'udp', 'dport', '53', 'drop')
    const { code, out } = await prove()
    expect(out).toContain('  the kernel: drop\n  decided by ip kube-proxy services, rule 1\n')
    expect(out).toMatch(/^NOT proved: \d+ of \d+ classes of packets/m)
    expect(code).toBe(3)
  })

  it('names a chain of another program that drops, and lists what it cannot read', async () => {
    await runInProcess(['run', '--once', ...SOURCE])
    nft('add table inet fw; add chain inet fw forward { type filter hook forward priority 0; }')
    nft('add chain inet fw early { type filter hook ingress device lo priority 0; }')
    nft('add rule inet fw forward tcp dport 8080 drop; add rule inet fw forward limit rate 5/second drop')
    const json = await prove('-o', 'json')
    const { isProved, differences, unknowns, assumptions, classes, packets } = JSON.parse(json.out)
    expect(json.code).toBe(3)
    expect([isProved, classes > 100, packets > 1e80]).toEqual([false, true, true])
    expect(differences).toContainEqual(
      expect.objectContaining({
        name: 'shop/storefront:http at 10.96.1.2:80/TCP',
        kernel: 'drop on the way to 10.244.0.21:8080',
        rule: 'inet fw forward, rule 1',
      }),
    )
    expect(unknowns).toContainEqual(
      expect.objectContaining({
        doubt: 'inet fw forward, rule 2: cannot trace a limit: what it matches depends on other packets',
      }),
    )
    expect(assumptions).toContain('inet fw early lets packets pass: its hook is not read')
  })

  it('proves nothing in a mode without an evaluator, and says so', async () => {
    const { code, out, err } = await prove('--proxy-mode=userspace')
    expect([code, out]).toEqual([1, ''])
    expect(err).toContain(
      '--prove: nothing is proved: userspace mode has no evaluator; nftables, IPVS and iptables mode have one',
    )
  })
})
