import { execFileSync } from 'node:child_process'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import type { NftClient } from '../../src/kernel/nft/client.ts'
import { surveyChains } from '../../src/kernel/nft/survey.ts'
import { programsOf } from '../../src/modes/foreign/programs.ts'
import { Connection } from '../../src/netlink/connection.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Dataplane, Plan } from '../../src/reconcile/dataplane.ts'
import { CLUSTER, clusterIp, EXTERNAL, nodePort, service, table, vip } from '../support/frontends.ts'
import { openIptablesPlane } from '../support/iptables-plane.ts'
import { parseEndpoint } from '../support/lab/address.ts'
import { Lab } from '../support/lab/lab.ts'
import { inIpv6, NEIGHBOR_RULES, type NeighborRules } from '../support/neighbors.ts'
import { commitAll, ip, openPlane } from '../support/pipeline.ts'
import { parseRow } from '../support/scenario.ts'
import { expectedLine, flowAnywhere, seenLine } from '../support/scenario-outcome.ts'

type ProxyMode = 'nftables' | 'iptables'

/* kprobe's rules beside those of each program, with packets: the matrix of docs/neighbors.md. */

const PACKETS = `
  pod     TCP 172.30.0.1:80 -> 10.21.0.1:8080 kept
  node    TCP 172.30.0.1:80 -> 10.21.0.1:8080 masqueraded
  outside TCP 198.51.100.4:80 -> 10.21.0.1:8080 masqueraded
  outside TCP 192.168.0.2:30080 -> 10.21.0.1:8080 masqueraded
`

interface Family {
  readonly name: 'IPv4' | 'IPv6'
  readonly restore: string
  readonly save: string
  /** Rules, packets and addresses of IPv4 in this family. */
  readonly of: (text: string) => string
}

const FAMILIES: readonly Family[] = [
  { name: 'IPv4', restore: 'iptables-nft-restore', save: 'iptables-nft-save', of: text => text },
  { name: 'IPv6', restore: 'ip6tables-nft-restore', save: 'ip6tables-nft-save', of: inIpv6 },
]

/** The ports of a Service in both families. Takes `ADDRESS:PORT` of its ClusterIP and of its endpoint. */
function ports(frontend: string, backend: string, more: readonly string[] = []) {
  return FAMILIES.map(({ name, of }) => {
    const [to, endpoint] = [parseEndpoint(of(frontend)), parseEndpoint(of(backend))]
    const vips = more.map(each => parseEndpoint(of(each)))
    return {
      v6: name === 'IPv6',
      cluster: [{ ip: ip(endpoint.address), port: endpoint.port, local: false }],
      frontends: [
        clusterIp(ip(to.address), to.port, CLUSTER),
        ...vips.map(({ address, port }) => vip(ip(address), port, EXTERNAL)),
        ...(more.length === 0 ? [] : [nodePort(30_080, EXTERNAL)]),
      ],
    }
  })
}

const SERVICES = table([
  service('ns1/web', ports('172.30.0.1:80', '10.21.0.1:8080', ['198.51.100.4:80'])),
  service('ns1/denied', ports('172.30.0.2:80', '10.21.0.2:8080')),
  service('kube-system/kube-dns', ports('172.30.0.53:53', '10.21.0.3:53')),
])

let lab: Lab
/** Writes the rules of a mode into the empty namespace. */
let serve: Readonly<Record<ProxyMode, () => Promise<unknown>>>
let clients: readonly NftClient[]

beforeAll(async () => {
  lab = await Lab.start({ alsoLocal: ['172.30.0.53', 'fd00:172::53'] })
  const nftables = openPlane({})
  const iptables = openIptablesPlane({})
  clients = [nftables.client, iptables.client]
  serve = {
    nftables: () => commitServices(nftables.plane),
    iptables: () => commitServices(iptables.plane),
  }
})
beforeEach(() => {
  execFileSync('nft', ['flush', 'ruleset'])
})
afterAll(async () => {
  for (const client of clients) await client.close()
  await lab.close()
})

/** As the daemon does at its start: it reads what is there, and writes the differences. */
async function commitServices<State, P extends Plan<State>>(plane: Dataplane<State, P>): Promise<void> {
  const { state } = await plane.observe()
  await commitAll(plane, state, finish(plane.render(SERVICES, { base: state, without: new Set() })))
}

function load({ nft, iptables }: NeighborRules, { restore, of }: Family): void {
  if (nft !== undefined) execFileSync('nft', ['-f', '-'], { input: of(nft) })
  if (iptables !== undefined) execFileSync(restore, ['--noflush'], { input: of(iptables) })
}

async function expectPackets(rowsOfTable: string): Promise<void> {
  const rows = rowsOfTable.split('\n').flatMap(line => parseRow('packets', line))
  const outcomes = await lab.trace(rows.map(flowAnywhere))
  const seen = rows.flatMap((row, index) => {
    const outcome = outcomes[index]
    return outcome === undefined ? [] : [seenLine(row, outcome, new Map())]
  })
  expect(seen).toEqual(rows.map(expectedLine))
}

async function namesFound({ device }: Pick<NeighborRules, 'device'> = {}): Promise<readonly string[]> {
  const transport = openNetlink({ protocol: NETLINK_NETFILTER })
  try {
    const chains = await surveyChains(new Connection({ transport, clock: systemClock }))
    return programsOf({ chains, legacyTables: [], devices: device === undefined ? [] : [device] }).map(
      ({ name }) => name,
    )
  } finally {
    await transport.close()
  }
}

const titled = NEIGHBOR_RULES.map(rules => ({
  ...rules,
  title: rules.variant === undefined ? rules.name : `${rules.name} (${rules.variant})`,
}))

function packetsBeside({ packets = '', kept }: NeighborRules, mode: ProxyMode): string {
  return kept?.[mode] ?? `${PACKETS}\n${packets}`
}

const MODES: readonly ProxyMode[] = ['nftables', 'iptables']
const CASES = MODES.flatMap(mode => FAMILIES.map(family => ({ mode, family, title: family.name })))

describe.each(CASES)('in $mode mode, $title', ({ mode, family }) => {
  it.each(titled)('packets of Services are as expected where $title came first', async rules => {
    load(rules, family)
    await serve[mode]()
    expect(await namesFound(rules)).toContain(rules.name)
    await expectPackets(family.of(packetsBeside(rules, mode)))
  })

  it.each(titled)('packets of Services are as expected where $title came last', async rules => {
    await serve[mode]()
    load(rules, family)
    // The daemon does this within milliseconds: test/faults/foreign.test.ts.
    if (rules.nft?.startsWith('flush ruleset')) await serve[mode]()
    expect(await namesFound(rules)).toContain(rules.name)
    await expectPackets(family.of(packetsBeside(rules, mode)))
  })

  it('leaves the connection mark of the Amazon VPC CNI to replies of node ports, and clears its own', async () => {
    for (const aws of NEIGHBOR_RULES.filter(({ name }) => name === 'Amazon VPC CNI')) load(aws, family)
    await serve[mode]()
    await expectPackets(family.of('outside TCP 192.168.0.2:30080 -> 10.21.0.1:8080 masqueraded'))
    const saved = execFileSync(family.save, ['-c', '-t', 'mangle'], { encoding: 'utf8' })
    expect(saved).toMatch(/^\[[1-9]\d*:\d+\] -A POSTROUTING .*-j WATCH$/m)
    expect(saved).toMatch(/^\[0:0\] -A WATCH$/m)
  })
})

it('beside no program, doctor names none', async () => {
  await serve.nftables()
  expect(await namesFound()).toEqual([])
})
