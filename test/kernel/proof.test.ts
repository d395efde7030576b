import { afterEach, beforeAll, describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import { listAllTables } from '../../src/kernel/nft/list.ts'
import type { NftablesState } from '../../src/modes/nftables/state.ts'
import { Connection } from '../../src/netlink/connection.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { type ChangesProof, type ProofState, RunningProof } from '../../src/proof/changes.ts'
import { type Ended, runInProcess, tool } from '../support/command.ts'
import { EXAMPLES } from '../support/daemon.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { change, commitAll, computeIn, NFTABLES, openClient, planeOn } from '../support/pipeline.ts'
import { meaningConfigOf, proofOf } from '../support/proof.ts'
import { LOCAL_IPS } from '../support/scenario.ts'
import { allStops } from '../support/walk.ts'

const SOURCE = [
  `--source=file:${EXAMPLES}`,
  '--hostname-override=example-node',
  '--cluster-cidr=10.244.0.0/16,fd00:10:244::/64',
]

const nft = (...args: readonly string[]): string => tool('nft', ...args)
const prove = (...more: string[]): Promise<Ended> => runInProcess(['verify', '--prove', ...SOURCE, ...more])

beforeAll(() => freshNetns())
afterEach(() => void nft('flush', 'ruleset'))

it('every step of every scenario is proved from what the kernel holds', async () => {
  const client = openClient()
  const connection = new Connection({
    transport: openNetlink({ protocol: NETLINK_NETFILTER }),
    clock: systemClock,
  })
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

const serviceOf = (number: number) => ({
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { namespace: 'ns', name: `s${number}` },
  spec: {
    type: 'ClusterIP',
    clusterIP: `172.30.0.${number}`,
    clusterIPs: [`172.30.0.${number}`],
    ipFamilies: ['IPv4'],
    ports: [{ port: 80, protocol: 'TCP' }],
  },
})
const sliceOf = (number: number, endpoints: number) => ({
  apiVersion: 'discovery.k8s.io/v1',
  kind: 'EndpointSlice',
  metadata: { namespace: 'ns', name: `s${number}-1`, labels: { 'kubernetes.io/service-name': `s${number}` } },
  addressType: 'IPv4',
  endpoints: Array.from({ length: endpoints }, (_, slot) => ({ addresses: [`10.180.${number}.${slot}`] })),
  ports: [{ name: '', port: 8080, protocol: 'TCP' }],
})

/** The service ports with a difference, in a proof of changes. */
const namesIn = (found: ChangesProof): readonly string[] =>
  found.kind === 'whole' ? [found.why] : [...new Set(found.proof.differences.map(({ name }) => name))]

it('a proof of changes follows what commits and other programs change in the kernel', async () => {
  const client = openClient()
  const transport = openNetlink({ protocol: NETLINK_NETFILTER })
  const connection = new Connection({ transport, clock: systemClock })
  const plane = planeOn(client, {})
  let computed = computeIn(NFTABLES, {}, LOCAL_IPS)
  const read = async (): Promise<ProofState> => {
    const { value } = await listAllTables({ connection, clock: systemClock, ipsets: undefined })
    return { snapshot: computed.resolved.snapshot, tables: value }
  }
  const commit = async () => {
    const { state } = await plane.observe()
    const { table } = computed.resolved
    await commitAll(plane, state, finish(plane.render(table, { base: state, without: new Set() })))
  }
  const running = new RunningProof({ config: meaningConfigOf({}), ownName: 'kube-proxy' })
  const changes = async (): Promise<ChangesProof> => finish(running.changes(await read()))
  const all = [1, 2, 3, 4].flatMap(number => [serviceOf(number), sliceOf(number, 3)])
  computed = change(computed, { objects: all })
  await commit()
  const whole = finish(running.whole(await read()))
  expect(whole.differences).toEqual([])
  computed = change(computed, { objects: [sliceOf(2, 4)] })
  // The kernel does not hold the new endpoint yet.
  expect(namesIn(await changes())).toEqual(['ns/s2 at 172.30.0.2:80/TCP'])
  await commit()
  const found = await changes()
  expect(found).toMatchObject({ kind: 'changes', proof: { wrong: 0 } })
  expect(found.kind === 'changes' ? found.proof.classes : Infinity).toBeLessThan(whole.classes / 3)
  nft('delete element ip kube-proxy frontends { 172.30.0.3 . tcp . 80 }')
  expect(namesIn(await changes())).toEqual(['ns/s3 at 172.30.0.3:80/TCP'])
  await commit()
  expect(await changes()).toMatchObject({ kind: 'changes', proof: { wrong: 0 } })
  nft('add table inet fw; add chain inet fw early { type filter hook prerouting priority -300; }')
  expect(await changes()).toEqual({ kind: 'whole', why: 'table inet fw is new' })
  await connection.close()
  await client.close()
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
      err: expect.stringContaining('--prove: "now" is not one of off, changes, full'),
    })
  })

  it('exits 3 before anything is programmed, and proves no packet of a Service', async () => {
    const { code, out } = await prove()
    expect(out).toMatch(/Kubernetes: one of 2 endpoints\n {2}the kernel: pass\n/)
    expect(code).toBe(3)
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
    const { isProved, differences, assumptions, classes, packets } = JSON.parse(json.out)
    expect(json.code).toBe(3)
    expect([isProved, classes > 100, packets > 1e80]).toEqual([false, true, true])
    expect(differences).toContainEqual(
      expect.objectContaining({
        name: 'shop/storefront:http at 10.96.1.2:80/TCP',
        kernel: 'drop on the way to 10.244.0.21:8080',
        rule: 'inet fw forward, rule 1',
      }),
    )
    expect(assumptions).toContain(
      'inet fw forward, rule 2 matches no packet (cannot trace the expression limit)',
    )
    expect(assumptions).toContain('inet fw early lets packets pass: its hook is not read')
  })

  it('proves nothing in a mode without an evaluator, and says so', async () => {
    const { code, out, err } = await prove('--proxy-mode=iptables')
    expect([code, out]).toEqual([1, ''])
    expect(err).toContain('--prove: nothing is proved: iptables mode has no evaluator; nftables mode has one')
  })
})
