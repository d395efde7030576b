import { execFileSync } from 'node:child_process'
import { createServer, type Server } from 'node:net'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { NF_ACCEPT, NF_INET_LOCAL_OUT } from '../../src/kernel/nft/constants.ts'
import type { Expression, NftFamily } from '../../src/kernel/nft/state.ts'
import type { Transaction } from '../../src/kernel/nft/transaction.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { ipsetNames } from '../contract/ipsets.ts'
import { outcomeOfConnecting } from '../support/connecting.ts'
import { destroyIpsets } from '../support/destroy-ipsets.ts'

const names = openNetlink({ protocol: NETLINK_NETFILTER })
let client: NftClient
let servers: Server[] = []

function ipset(...args: readonly string[]): void {
  execFileSync('ipset', args)
}

beforeEach(() => {
  execFileSync('nft', ['flush', 'ruleset'])
  execFileSync('ip', ['link', 'set', 'lo', 'up'])
  const transport = openNetlink({ protocol: NETLINK_NETFILTER })
  client = createNftClient({ transport, clock: systemClock, ipsets: ipsetNames(names) })
})

afterEach(async () => {
  await client.close()
  execFileSync('nft', ['flush', 'ruleset'])
  await Promise.all(servers.map(server => new Promise(resolve => server.close(resolve))))
  servers = []
  await destroyIpsets()
})

async function listen(host: string): Promise<number> {
  const server = createServer(socket => socket.destroy())
  servers.push(server)
  await new Promise<void>(resolve => server.listen(0, host, resolve))
  const address = server.address()
  return typeof address === 'object' && address !== null ? address.port : 0
}

function rejecting(family: NftFamily, ...matches: readonly Expression[]): Transaction {
  const target = { family, table: 'ipsets' } as const
  const hook = { type: 'filter', hooknum: NF_INET_LOCAL_OUT, priority: 0, policy: NF_ACCEPT } as const
  const tcp: readonly Expression[] = [
    { kind: 'meta', key: 16, dreg: 0 },
    { kind: 'cmp', op: 'eq', sreg: 0, data: '\x06' },
  ]
  const expressions = [...tcp, ...matches, { kind: 'reject', code: family === 'ip' ? 3 : 4 } as const]
  return [
    { ...target, verb: 'add-table', flags: 0, comment: undefined },
    { ...target, verb: 'add-chain', chain: { name: 'out', hook, rules: [] } },
    { ...target, verb: 'add-rule', chain: 'out', rule: { expressions, comment: '' } },
  ]
}

const member = (set: string, ...dimensions: ('src' | 'dst')[]) => {
  return { kind: 'ipset', set, dimensions, inverted: false } as const
}

it.each([
  ['ip', '127.0.0.1', 'inet'],
  ['ip6', '::1', 'inet6'],
] as const)(
  'a rule in the family %s meets the packets that its ipset has, and no others',
  async (family, host, inet) => {
    const [inside, outside] = [await listen(host), await listen(host)]
    ipset('create', 'SERVICES', 'hash:ip,port', 'family', inet)
    ipset('create', 'CLIENTS', 'hash:ip', 'family', inet)
    const { outcome: committed } = await client.commit(
      rejecting(family, member('SERVICES', 'dst', 'dst'), { ...member('CLIENTS', 'src'), inverted: true }),
    )
    expect(committed).toBe('committed')
    const both = async () => [
      await outcomeOfConnecting(host, inside),
      await outcomeOfConnecting(host, outside),
    ]
    expect(await both()).toEqual(['connected', 'connected'])
    ipset('add', 'SERVICES', `${host},tcp:${inside}`)
    expect(await both()).toEqual(['ECONNREFUSED', 'connected'])
    ipset('add', 'CLIENTS', host)
    expect(await both()).toEqual(['connected', 'connected'])
    ipset('del', 'CLIENTS', host)
    ipset('del', 'SERVICES', `${host},tcp:${inside}`)
    ipset('add', 'SERVICES', `${host},tcp:${outside}`)
    expect(await both()).toEqual(['connected', 'ECONNREFUSED'])
  },
)

it('nft lists the rule, and still lists what stands beside it', async () => {
  ipset('create', 'SERVICES', 'hash:ip,port')
  await client.commit(rejecting('ip', member('SERVICES', 'dst', 'dst')))
  const text = execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' })
  expect(text).toMatch(/meta l4proto tcp xt match "?set"? .*reject/)
  const document = execFileSync('nft', ['-j', 'list', 'ruleset'], { encoding: 'utf8' })
  expect(document).toContain('{"xt": {"type": "match", "name": "set"}}')
})

it('a set in use cannot be destroyed, and can be swapped: the rule then sees the other content', async () => {
  const port = await listen('127.0.0.1')
  ipset('create', 'SERVICES', 'hash:ip,port')
  ipset('create', 'NEXT', 'hash:ip,port', 'maxelem', '131072')
  ipset('add', 'NEXT', `127.0.0.1,tcp:${port}`)
  await client.commit(rejecting('ip', member('SERVICES', 'dst', 'dst')))
  expect(() => ipset('destroy', 'SERVICES')).toThrow('in use')
  const before = await client.list([{ family: 'ip', name: 'ipsets' }])
  ipset('swap', 'SERVICES', 'NEXT')
  expect(await outcomeOfConnecting('127.0.0.1', port)).toBe('ECONNREFUSED')
  expect((await client.list([{ family: 'ip', name: 'ipsets' }])).ruleset).toEqual(before.ruleset)
})
