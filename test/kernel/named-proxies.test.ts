import { get } from 'node:http'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createConntrackClient } from '../../src/kernel/conntrack/client.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import {
  listing,
  OBJECTS,
  PACKETS,
  type ProxyName,
  podsOf,
  SharedNode,
  serviceFor,
  tableNames,
} from '../support/named-proxies.ts'
import { eventually, patientMs } from '../support/patience.ts'
import { entry, entryText, flowText, inject } from '../unit/kernel/conntrack/flows.ts'

/* docs/decisions/0021: proxies of several names on one node do not disturb each other. */

const NAMES: readonly ProxyName[] = ['', 'red', 'blue']
/** Changes of one proxy's Service. */
const COMMITS = 20
const TABLES = ['kube-proxy', 'kube-proxy-blue', 'kube-proxy-red']
  .flatMap(name => [`table ip ${name}`, `table ip6 ${name}`])
  .sort()

const PLAIN = `${PACKETS.plain}
  pod     TCP 172.30.0.41:81 -> reject
`
const RED = `${PACKETS.red}
  pod     TCP 172.30.0.42:81 -> reject
`
const BLUE = PACKETS.blue
const NOBODYS = `
  pod     TCP 172.30.0.99:80 -> drop
  outside TCP 198.51.100.7:80 -> pass
`

let node: SharedNode

beforeAll(async () => {
  node = await SharedNode.open()
})

afterAll(async () => {
  await node?.close()
})

async function startAll(names: readonly ProxyName[] = NAMES): Promise<void> {
  for (const name of names) await node.start(name)
}

/** All agree with their sources, in each other's presence. */
async function expectAgreement(): Promise<void> {
  for (const name of NAMES) {
    const verified = await node.command(name, 'verify', `--admin-socket=${node.socketOf(name)}`)
    expect(verified).toMatchObject({
      code: 0,
      out: 'source, daemon and kernel agree; 1 Service compared\n',
      err: '',
    })
  }
}

/** The Services from the beginning are served again. */
async function restored(): Promise<void> {
  node.write(OBJECTS)
  const ofRed = () => listing('ip', 'kube-proxy-red')
  await eventually(() => ofRed().includes('10.180.0.2 ') && !ofRed().includes('172.30.0.41'), 'red')
  await eventually(() => listing('ip', 'kube-proxy').includes('198.51.100.4'), 'plain')
}

/** Each test leaves the proxies as it finds them, but for the last one. */
describe('proxies of several names on one node', () => {
  beforeAll(async () => {
    await node.clear()
    await startAll()
  })

  test('serve their own Services', async () => {
    expect(tableNames()).toEqual(TABLES)
    await node.expectPackets(`${PLAIN}${RED}${BLUE}${NOBODYS}`)
    await expectAgreement()
  })

  test('follow changes of their own, and of nothing else', async () => {
    const others = () => ['kube-proxy', 'kube-proxy-blue'].map(name => listing('ip', name))
    const before = others()
    for (let count = 0; count < COMMITS; count++) {
      const name = `10.180.0.${count + 5}`
      node.write([...OBJECTS.filter(({ metadata }) => !isSliceOf(metadata, 'red')), podsOf('red', name)])
      await eventually(() => listing('ip', 'kube-proxy-red').includes(name), name)
    }
    expect(others()).toEqual(before)
    await node.expectPackets(
      `${PLAIN}${RED.replaceAll('10.180.0.2:', '10.180.0.24:').replace('pod 10.180.0.2 ', 'pod 10.180.0.24 ')}${BLUE}`,
    )
    for (const name of NAMES) {
      await node.daemon(name).caughtUp()
      const bad = node.daemon(name).records.filter(({ level }) => level === 'warn' || level === 'error')
      expect(bad, `what ${name} complains of`).toEqual([])
    }
    // They look at their own tables until they have learnt whose commits these are.
    for (const name of ['', 'blue'] as const) {
      const looks = node.daemon(name).said('another process changed nf_tables').length
      expect(looks).toBeGreaterThan(0)
      expect(looks).toBeLessThan(COMMITS)
    }
    await expectAgreement()
    await restored()
  })

  test('end without each other, and go on where they were', async () => {
    await node.daemon('red').stop('SIGKILL')
    await node.expectPackets(`${PLAIN}${RED}${BLUE}${NOBODYS}`)
    const table = listing('ip', 'kube-proxy-red')
    const again = await node.start('red')
    expect(again.said('first sync complete')).toMatchObject([{ changes: 0 }])
    expect(listing('ip', 'kube-proxy-red')).toBe(table)
    await node.daemon('').stop()
    await node.start('')
    expect(node.daemon('').said('first sync complete')).toMatchObject([{ changes: 0 }])
    expect(tableNames()).toEqual(TABLES)
    await expectAgreement()
  })

  test('hand a Service over, and take it back', async () => {
    const others = OBJECTS.filter(({ metadata }) => JSON.stringify(metadata).includes('plain') === false)
    const spec = { clusterIP: '172.30.0.41' }
    for (const [owner, other] of [
      ['red', ''],
      ['', 'red'],
    ] as const) {
      node.write([...others, serviceFor(owner, 'plain', spec), podsOf('plain', '10.180.0.1')])
      const tables = { '': 'kube-proxy', red: 'kube-proxy-red' }
      await eventually(
        () =>
          listing('ip', tables[owner]).includes('172.30.0.41') &&
          !listing('ip', tables[other]).includes('172.30.0.41'),
        `${owner} has it`,
      )
      await node.expectPackets(`
        pod     TCP 172.30.0.41:80 -> 10.180.0.1:80 kept
        outside UDP 172.30.0.41:53 -> 10.180.0.1:53 masqueraded
        pod     TCP 172.30.0.41:81 -> reject
      `)
    }
    await restored()
  })

  test('are one of each name', async () => {
    const second = node.launch('red', '--metrics-bind-address=127.0.0.1:1', '--admin-socket=')
    expect(await second.ended()).toMatchObject({ code: 1 })
    expect(second.said('another kprobe with this --service-proxy-name runs')).toHaveLength(1)
  })

  test('have health check node ports of their own', async () => {
    for (const [port, name] of [
      [30_500, 'plain'],
      [30_501, 'red'],
    ] as const) {
      const answered = async () => (await answer(port)).includes(`"name": "${name}"`)
      await eventually(answered, `health of ${name}`)
      expect(JSON.parse(await answer(port))).toMatchObject({ localEndpoints: 1 })
    }
  })

  test('cleanup removes what is of one proxy', async () => {
    const busy = await node.command('red', 'cleanup')
    expect(busy).toMatchObject({ code: 1 })
    expect(busy.err).toContain('another kprobe runs')
    await node.daemon('red').stop()
    expect(await node.command('red', 'cleanup')).toEqual({
      code: 0,
      out: 'removed table ip kube-proxy-red\nremoved table ip6 kube-proxy-red\n',
      err: '',
    })
    expect((await node.command('red', 'cleanup')).out).toBe('the kernel holds no objects of kprobe\n')
    expect(tableNames()).toEqual(TABLES.filter(table => !table.endsWith('-red')))
    await node.expectPackets(`${PLAIN}${BLUE}\n pod TCP 172.30.0.42:80 -> drop`)
    await node.daemon('').stop()
    expect((await node.command('', 'cleanup')).out).toBe(
      'removed table ip kube-proxy\nremoved table ip6 kube-proxy\n',
    )
    expect(tableNames()).toEqual(TABLES.filter(table => table.endsWith('-blue')))
    await node.expectPackets(`${BLUE}\n pod TCP 172.30.0.41:80 -> pass`)
  })
})

function isSliceOf(metadata: unknown, name: string): boolean {
  return JSON.stringify(metadata).includes(`"${name}-ipv`)
}

function answer(port: number): Promise<string> {
  return new Promise(resolve => {
    const request = get({ host: '192.168.0.2', port, timeout: patientMs() }, response => {
      let text = ''
      response.setEncoding('utf8')
      response.on('data', chunk => {
        text += chunk
      })
      response.on('end', () => resolve(text))
    })
    request.on('error', () => resolve(''))
    request.on('timeout', () => request.destroy())
  })
}

describe('two of three proxies on one node', () => {
  beforeAll(async () => {
    await node.clear()
    await startAll(['', 'red'])
  })

  test('dump, plan and explain speak of one proxy', async () => {
    const services = async (name: ProxyName) =>
      new Set(
        JSON.parse((await node.command(name, 'dump', '-o', 'json')).out).services.map(
          ({ service }: { readonly service: string }) => service,
        ),
      )
    expect(await services('')).toEqual(new Set(['ns1/plain:web', 'ns1/plain:dns']))
    expect(await services('red')).toEqual(new Set(['ns1/red:web', 'ns1/red:dns']))
    expect((await node.command('blue', 'dump')).err).toBe(
      'the kernel holds no objects of kprobe from the proxy "blue"\n',
    )
    expect((await node.command('red', 'dump', '-o', 'nft')).out).toMatch(/^table ip kube-proxy-red \{/)
    expect((await node.command('red', 'dump', '-o', 'nft')).out).not.toMatch(/^table ip6? kube-proxy \{/m)
    const plans = await Promise.all(NAMES.map(name => node.command(name, 'plan')))
    expect(plans.map(({ code }) => code)).toEqual([0, 0, 3])
    const asked = ['--from', '203.0.113.9', '--to', '198.51.100.6:80', '-o', 'json']
    expect(JSON.parse((await node.command('blue', 'explain', ...asked)).out).service).toBe('ns1/blue:web')
    expect(JSON.parse((await node.command('red', 'explain', ...asked)).out).service).toBeUndefined()
  })

  test('doctor names the others without a warning', async () => {
    const told = async (name: ProxyName) =>
      JSON.parse((await node.command(name, 'doctor', '-o', 'json')).out).findings
    expect(await told('blue')).toContainEqual(
      expect.objectContaining({ kind: 'note', text: expect.stringContaining('unnamed proxy') }),
    )
    for (const name of ['', 'blue'] as const)
      expect(await told(name)).toContainEqual(
        expect.objectContaining({
          kind: 'note',
          subject: expect.stringContaining('kube-proxy-red'),
          text: expect.stringContaining('--service-proxy-name=red'),
        }),
      )
  })

  test.each([
    ['cleanup', '--leftovers-of=kube-proxy', '--leftovers-of: cannot be combined with --service-proxy-name'],
    ['cleanup', '--proxy-mode=ipvs', '--service-proxy-name: cannot be used in IPVS mode'],
    ['dump', 'ipvs', '--service-proxy-name: a named proxy cannot use IPVS'],
    ['plan', '--proxy-mode=ipvs', '--service-proxy-name: cannot be used in IPVS mode'],
  ])('%s %s is refused for a named proxy', async (command, argument, message) => {
    const ended = await node.command('red', command, argument)
    expect(ended.code).toBe(2)
    expect(ended.err).toContain(message)
  })

  test('say which flag moves a server whose place is taken', async () => {
    const blue = await node.start('blue', '--healthz-bind-address=127.0.0.1:10256')
    await blue.logged('change with --healthz-bind-address')
    await node.expectPackets(BLUE)
  })
})

describe('proxies of several names, one after the other', () => {
  beforeEach(() => node.clear())

  test('have what two of them ask for in an order that the kernel gives', async () => {
    const external = { clusterIP: 'None', externalIPs: ['198.51.100.9'] }
    const contested = NAMES.map((name, index) => [
      serviceFor(name, `c${index}`, name === '' ? { ...external, clusterIP: '172.30.0.50' } : external),
      podsOf(`c${index}`, `10.180.0.${100 + index}`),
    ])
    node.write([...OBJECTS, ...contested.flat()])
    await node.start('blue')
    await node.start('red')
    await node.start('')
    // Chains of one hook and priority are called in the order in which they came.
    await node.expectPackets(
      `outside TCP 198.51.100.9:80 -> 10.180.0.101:80 masqueraded\n${PLAIN}${RED}${BLUE}`,
    )
  })

  test('cleanup removes what is left of each mode that a named proxy can have', async () => {
    await node.start('red')
    await node.daemon('red').stop()
    await node.start('red', '--proxy-mode=userspace')
    await eventually(() => !tableNames().includes('table ip kube-proxy-red'), 'the mode from before is gone')
    await node.daemon('red').stop()
    expect(tableNames()).toEqual(['table ip kube-proxy-userspace.red', 'table ip6 kube-proxy-userspace.red'])
    expect((await node.command('', 'cleanup')).out).toBe('the kernel holds no objects of kprobe\n')
    expect((await node.command('red', 'dump', 'nft')).out).toMatch(/^table ip kube-proxy-userspace\.red \{/)
    expect((await node.command('red', 'cleanup')).out).toBe(
      'removed table ip kube-proxy-userspace.red\nremoved table ip6 kube-proxy-userspace.red\n',
    )
    expect(tableNames()).toEqual([''])
  })
})

describe('connection tracking', () => {
  beforeEach(() => node.clear())

  const openTransport = () => openNetlink({ protocol: NETLINK_NETFILTER })

  async function entries(): Promise<readonly string[]> {
    const client = createConntrackClient({ openTransport, clock: systemClock })
    const found: string[] = []
    try {
      const visit = (flow: Parameters<typeof flowText>[0]) => found.push(flowText(flow))
      await client.dump({ family: 'IPv4', protocol: 'UDP' }, { isWanted: () => true, visit })
    } finally {
      await client.close()
    }
    return found.sort()
  }

  test('each removes flows to its own frontends alone', async () => {
    const good = [
      entry('10.180.9.9:4001', '172.30.0.41:53', '10.180.0.1:53'),
      entry('10.180.9.9:4002', '172.30.0.42:53', '10.180.0.2:53'),
      entry('10.180.9.9:4003', '198.51.100.6:53', '10.180.0.4:53'),
      entry('203.0.113.9:4004', '192.168.0.2:30011', '10.180.0.1:53'),
      entry('203.0.113.9:4005', '192.168.0.2:30021', '10.180.0.2:53'),
    ]
    const stale: readonly (readonly [ProxyName, ReturnType<typeof entry>])[] = [
      ['', entry('10.180.9.9:4011', '172.30.0.41:53', '10.180.0.77:53')],
      ['red', entry('203.0.113.9:4012', '192.168.0.2:30021', '10.180.0.77:53')],
      ['blue', entry('10.180.9.9:4013', '198.51.100.6:53', '10.180.0.77:53')],
    ]
    node.lab.topology.node.forgetConnections()
    await node.lab.topology.node.sync()
    const injector = openTransport()
    expect(inject(injector, [...good, ...stale.map(([, each]) => each)])).toBe(8)
    await injector.close()
    let left = stale
    for (const name of ['red', '', 'blue'] as const) {
      await node.start(name)
      left = left.filter(([owner]) => owner !== name)
      const expected = [...good, ...left.map(([, each]) => each)].map(entryText).sort()
      await eventually(async () => (await entries()).length <= expected.length, `the pass of ${name}`)
      expect(await entries()).toEqual(expected)
    }
  })
})

describe.each(['iptables', 'userspace'] as const)('beside an unnamed proxy in %s mode', mode => {
  beforeEach(() => node.clear())

  test('named ones serve, one started before it and one after', async () => {
    await node.start('red')
    await node.start('', `--proxy-mode=${mode}`, '--nodeport-addresses=192.168.0.2/32')
    await node.start('blue')
    await node.expectPackets(`${RED}${BLUE}`)
    if (mode === 'iptables') await node.expectPackets('pod TCP 172.30.0.41:80 -> 10.180.0.1:80 kept')
    expect(tableNames()).toEqual(
      expect.arrayContaining(TABLES.filter(table => !table.endsWith('kube-proxy'))),
    )
    expect(await node.command('blue', 'verify')).toMatchObject({ code: 0 })
  })
})
