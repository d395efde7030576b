import { execFileSync } from 'node:child_process'
import { createServer } from 'node:net'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { parseIp } from '../../src/base/ip.ts'
import { IpsetClient } from '../../src/kernel/ipset/client.ts'
import { growthOf, leftoversOf } from '../../src/kernel/ipset/grow.ts'
import type { IpsetEntry, IpsetOperation } from '../../src/kernel/ipset/state.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { NF_ACCEPT, NF_INET_LOCAL_OUT } from '../../src/kernel/nft/constants.ts'
import type { Expression } from '../../src/kernel/nft/state.ts'
import { outcomeOfConnecting } from '../support/connecting.ts'
import { add, manyEntries, setOf } from '../support/fake-ipset/arbitraries.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { openNetfilter } from './kernel.ts'

const SET = setOf('KUBE-CLUSTER-IP', 'hash:ip,port')
const HOST = '127.0.0.1'
let client: IpsetClient

beforeEach(() => {
  freshNetns()
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  client = new IpsetClient({ transport: openNetfilter(), clock: systemClock })
})

afterEach(() => client.close())

function ipset(args: readonly string[], input?: string): string {
  return execFileSync('ipset', args, { encoding: 'utf8', ...(input === undefined ? {} : { input }) })
}

async function done(...operations: readonly IpsetOperation[]): Promise<void> {
  const { failures, unknown } = await client.commit(operations)
  expect(failures.map(({ error }) => error.message)).toEqual([])
  expect(unknown).toBeUndefined()
}

it('F109: foreign sets are named, never touched, and never taken for ours', async () => {
  const foreign = [
    'create somebodys hash:net,iface family inet',
    'add somebodys 10.0.0.0/8,eth0',
    'create KUBE-EXTERNAL-IP hash:ip,port family inet timeout 600',
    'add KUBE-EXTERNAL-IP 10.0.0.1,tcp:80 timeout 600',
    'create KUBE-IPVS-IPS list:set size 8',
    'add KUBE-IPVS-IPS somebodys',
  ]
  ipset(['restore'], foreign.join('\n'))
  const before = saved('somebodys', 'KUBE-EXTERNAL-IP', 'KUBE-IPVS-IPS')
  const external = { ...SET, name: 'KUBE-EXTERNAL-IP' }
  const { failures } = await client.commit([
    { verb: 'create', set: external },
    { verb: 'create', set: setOf('KUBE-IPVS-IPS', 'hash:ip') },
    { verb: 'create', set: SET },
    add({ set: SET, entries: manyEntries(100) }),
  ])
  expect(failures.map(({ error }) => error.message)).toEqual([
    'create KUBE-EXTERNAL-IP hash:ip,port: EEXIST (File exists): another set has this name: it is hash:ip,port with a timeout',
    'create KUBE-IPVS-IPS hash:ip: EEXIST (File exists): another set has this name: it is of the type list:set',
  ])
  const { headers, foreign: named } = await client.headers()
  expect(headers).toMatchObject([{ set: SET, elements: 100 }])
  expect(named.toSorted()).toEqual(['KUBE-EXTERNAL-IP', 'KUBE-IPVS-IPS', 'somebodys'])
  await done({ verb: 'destroy', name: SET.name })
  expect(saved('somebodys', 'KUBE-EXTERNAL-IP', 'KUBE-IPVS-IPS')).toEqual(before)
})

/** Without what goes on by itself. */
function saved(...names: readonly string[]): readonly string[] {
  return names.map(name => ipset(['save', name]).replace(/(add .*) timeout \d+/g, '$1'))
}

it('F109: kube-proxy’s own set is adopted, whatever its size', async () => {
  ipset(['create', SET.name, 'hash:ip,port', 'family', 'inet', 'hashsize', '64', 'maxelem', '1000'])
  ipset(['add', SET.name, '10.96.0.1,tcp:443'])
  await done({ verb: 'create', set: SET }, add({ set: SET, entries: manyEntries(3) }))
  const { headers } = await client.headers()
  expect(headers).toMatchObject([{ set: { ...SET, maxElements: 1000, hashSize: 64 }, elements: 4 }])
})

it('F109: a set that a rule asks is replaced by a larger one before it is full, and the rule sees the new content', async () => {
  const small = { ...SET, maxElements: 64 }
  await done({ verb: 'create', set: small }, add({ set: small, entries: manyEntries(60) }))
  const server = createServer(socket => socket.destroy())
  await new Promise<void>(resolve => server.listen(0, HOST, resolve))
  const address = server.address()
  const port = typeof address === 'object' && address !== null ? address.port : 0
  const nft = createNftClient({ transport: openNetfilter(), clock: systemClock, ipsets: client })
  try {
    await reject(nft)
    expect(await outcomeOfConnecting(HOST, port)).toBe('connected')
    const wanted: IpsetEntry[] = [...manyEntries(5000), { ip: parseIp(HOST) ?? '', protocol: 6, port }]
    const full = await client.commit([add({ set: small, entries: wanted })])
    expect(new Set(full.failures.map(({ code }) => code))).toEqual(new Set(['IPSET_ERR_HASH_FULL']))
    const growth = growthOf({ set: small, entries: wanted, groups: [] })
    await done(...growth.build)
    expect(await outcomeOfConnecting(HOST, port)).toBe('connected')
    await done(...growth.replace)
    expect(await outcomeOfConnecting(HOST, port)).toBe('ECONNREFUSED')
    const { headers } = await client.headers()
    expect(headers).toMatchObject([{ set: { maxElements: 65_536 }, elements: wanted.length, references: 1 }])
  } finally {
    await nft.close()
    await new Promise(resolve => server.close(resolve))
  }
})

it('F109: whatever a crash in the middle of a build-and-swap leaves is recognized, and the next one ends well', async () => {
  const all = manyEntries(1500)
  const growth = growthOf({ set: { ...SET, maxElements: 1000 }, entries: all, groups: [] })
  const steps = [...growth.build, ...growth.replace]
  const first = { ...SET, maxElements: 1000 }
  for (let crash = 0; crash <= steps.length; crash++) {
    ipset(['destroy'])
    await done({ verb: 'create', set: first }, add({ set: first, entries: manyEntries(900) }))
    await done(...steps.slice(0, crash))
    const { headers } = await client.headers()
    const names = new Set(headers.map(({ set }) => set.name))
    const hasLeft = crash >= 2 && crash < steps.length
    expect(leftoversOf([SET.name], names)).toEqual(hasLeft ? ['KUBE-CLUSTER-IP-tmp'] : [])
    await done(...steps)
    expect((await client.headers()).headers).toMatchObject([{ set: growth.set, elements: 1500 }])
  }
})

async function reject(nft: ReturnType<typeof createNftClient>): Promise<void> {
  const target = { family: 'ip', table: 'ipsets' } as const
  const hook = { type: 'filter', hooknum: NF_INET_LOCAL_OUT, priority: 0, policy: NF_ACCEPT } as const
  const expressions: readonly Expression[] = [
    { kind: 'meta', key: 16, dreg: 0 },
    { kind: 'cmp', op: 'eq', sreg: 0, data: '\x06' },
    { kind: 'ipset', set: SET.name, dimensions: ['dst', 'dst'], inverted: false },
    { kind: 'reject', code: 3 },
  ]
  const result = await nft.commit([
    { ...target, verb: 'add-table', flags: 0, comment: undefined },
    { ...target, verb: 'add-chain', chain: { name: 'out', hook, rules: [] } },
    { ...target, verb: 'add-rule', chain: 'out', rule: { expressions, comment: '' } },
  ])
  expect(result.outcome).toBe('committed')
}
