import { execFileSync } from 'node:child_process'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { chainNames } from '../../src/modes/xt-common/layout.ts'
import { OBJECTS, PACKETS, type ProxyName, podsOf, SharedNode, serviceFor } from '../support/named-proxies.ts'
import { eventually } from '../support/patience.ts'

/* docs/decisions/0021: proxies of several names in iptables mode, beside a main one in whatever mode. */

const IPTABLES = '--proxy-mode=iptables'
const RED_CHAINS = chainNames('red').prefix

/** A Service of each proxy that no endpoint serves. */
const IDLE = [
  serviceFor('', 'idle', { clusterIP: '172.30.0.61' }),
  serviceFor('red', 'idle-red', { clusterIP: '172.30.0.62', externalIPs: ['198.51.100.62'] }),
]

const { plain: PLAIN, red: RED, blue: BLUE } = PACKETS
/** Nobody from outside comes so. */
const LOOPBACK = `
  node    TCP 127.0.0.1:30020 -> 10.180.0.2:80 masqueraded
`

let node: SharedNode

beforeAll(async () => {
  node = await SharedNode.open()
})

beforeEach(async () => {
  await node.clear()
  node.write([...OBJECTS, ...IDLE])
})

afterAll(async () => {
  await node?.close()
})

/** What iptables-nft-save prints of both families, without comments and counts of packets. */
function saved(): readonly string[] {
  return (['iptables-nft-save', 'ip6tables-nft-save'] as const).flatMap(program =>
    execFileSync(program, { encoding: 'utf8' })
      .split('\n')
      .filter(line => line !== '' && !line.startsWith('#'))
      .map(line => `${program} ${line.replace(/ \[\d+:\d+\]$/, '')}`),
  )
}

/** All that has to do with chains of that prefix, in the order of the kernel; with `without`, all that has not. */
function linesOf(prefix: string, without = false): readonly string[] {
  return saved().filter(line => line.includes(`${prefix}-`) !== without)
}

function iptables(...args: readonly string[]): void {
  execFileSync('iptables-nft', args)
}

type Start = readonly [name: ProxyName, ...args: readonly string[]]

async function startAll(starts: readonly Start[]): Promise<void> {
  for (const [name, ...args] of starts) await node.start(name, ...args)
}

async function expectAgreement(starts: readonly Start[]): Promise<void> {
  for (const [name, ...args] of starts)
    expect(
      await node.command(name, 'verify', ...args, `--admin-socket=${node.socketOf(name)}`),
    ).toMatchObject({
      code: 0,
      out: expect.stringContaining('source, daemon and kernel agree'),
      err: '',
    })
}

const MAINS: Readonly<Record<string, Start>> = {
  iptables: ['', IPTABLES],
  nftables: ['', '--proxy-mode=nftables'],
  // The relay of this one listens on the node alone.
  userspace: ['', '--proxy-mode=userspace', '--nodeport-addresses=192.168.0.2/32'],
}

describe.each(Object.entries(MAINS))('beside an unnamed proxy in %s mode', (mode, main) => {
  const red: Start = ['red', IPTABLES]
  const blue: Start = ['blue', IPTABLES]

  // Chains of one hook and priority are called in the order in which they came.
  test.each([
    ['before two named ones', [main, red, blue]],
    ['between them', [red, main, blue]],
    ['after them', [blue, red, main]],
  ] as const)('started %s, each serves its own Services', async (_, starts) => {
    await startAll(starts)
    await node.expectPackets(`${RED}${BLUE}${LOOPBACK}${mode === 'userspace' ? '' : PLAIN}`)
    // The main one drops what nobody knows, if it does, before tables of iptables can reject.
    const ends = mode === 'iptables' ? 'reject' : 'drop'
    await node.expectPackets(`
      pod     TCP 172.30.0.61:80 -> reject
      pod     TCP 172.30.0.62:80 -> ${ends}
      node    TCP 172.30.0.62:80 -> ${ends}
      outside TCP 198.51.100.62:80 -> reject
      pod     TCP 172.30.0.99:80 -> ${mode === 'iptables' ? 'pass' : 'drop'}
      outside TCP 198.51.100.7:80 -> pass
    `)
    await expectAgreement(starts)
  })
})

describe("beside kube-proxy's chains", () => {
  test('a named proxy comes, changes, heals and goes, and nothing of theirs moves', async () => {
    const foreign = () => linesOf(RED_CHAINS, true)
    await node.start('', IPTABLES)
    const before = foreign()
    expect(before.join('\n')).toMatch(/-A KUBE-SERVICES .*ns1\/plain/)
    await node.start('red', IPTABLES)
    expect(foreign()).toEqual(before)
    const held = linesOf(RED_CHAINS)
    expect(held.join('\n')).toMatch(/-A PREROUTING .*"kubernetes service portals of red" -j KP/)
    expect(held.filter(line => line.includes('KUBE-'))).toEqual([])

    node.write([...OBJECTS, ...IDLE, podsOf('idle-red', '10.180.0.5')])
    await eventually(() => linesOf(RED_CHAINS).some(line => line.includes('10.180.0.5')), 'the new endpoint')
    expect(foreign()).toEqual(before)
    await node.expectPackets(`${PLAIN}${RED}\n pod TCP 172.30.0.62:80 -> 10.180.0.5:80 kept`)

    const whole = linesOf(RED_CHAINS)
    iptables('-t', 'nat', '-F', `${RED_CHAINS}-SERVICES`)
    iptables('-t', 'nat', '-A', `${RED_CHAINS}-MARK-MASQ`, '-j', 'RETURN')
    const jump = held.find(line => line.includes('-A FORWARD') && line.includes(`-j ${RED_CHAINS}-FORWARD`))
    iptables(
      '-D',
      'FORWARD',
      ...['-m', 'comment', '--comment', 'kubernetes forwarding rules of red', '-j', `${RED_CHAINS}-FORWARD`],
    )
    expect(jump).toBeDefined()
    await eventually(
      () => linesOf(RED_CHAINS).toSorted().join() === whole.toSorted().join(),
      'it is whole again',
    )
    expect(foreign()).toEqual(before)

    await node.daemon('red').stop()
    expect(linesOf(RED_CHAINS)).toHaveLength(whole.length)
    expect((await node.command('red', 'cleanup')).out.split('\n')).toEqual([
      expect.stringMatching(
        /^removed 6 chains with \d+ rules, and the rules that led to them, in table ip filter$/,
      ),
      expect.stringMatching(
        /^removed \d+ chains with \d+ rules, and the rules that led to them, in table ip nat$/,
      ),
      expect.stringMatching(/in table ip6 filter$/),
      expect.stringMatching(/in table ip6 nat$/),
      '',
    ])
    expect(saved()).toEqual(before)
    expect((await node.command('red', 'cleanup')).out).toBe('the kernel holds no objects of kprobe\n')
  })

  test('optimized rules of a named one serve as well', async () => {
    const starts: readonly Start[] = [
      ['', IPTABLES, '--iptables-optimize'],
      ['red', IPTABLES, '--iptables-optimize'],
      ['blue', IPTABLES, '--iptables-optimize'],
    ]
    await startAll(starts)
    await node.expectPackets(`${PLAIN}${RED}${BLUE}`)
    expect(linesOf(RED_CHAINS).filter(line => line.includes(`-A ${RED_CHAINS}-SVC-IP-2A`))).toHaveLength(2)
    await expectAgreement(starts)
    // Within what iptables takes for a name.
    for (const [, name = ''] of saved()
      .join('\n')
      .matchAll(/ :(\S+)/g))
      expect(name.length).toBeLessThanOrEqual(28)
  })
})

describe('commands', () => {
  test('dump, plan, explain and doctor speak of one proxy', async () => {
    await startAll([
      ['', IPTABLES],
      ['red', IPTABLES],
    ])
    const rows = async (name: ProxyName): Promise<unknown> =>
      JSON.parse((await node.command(name, 'dump', '-o', 'json')).out).services.map(
        ({ service, frontend, action, endpoints }: Record<string, unknown>) => [
          service,
          frontend,
          action,
          endpoints,
        ],
      )
    expect(await rows('red')).toEqual(
      expect.arrayContaining([
        ['ns1/red:web', '172.30.0.42:80', 'balance', ['10.180.0.2:80']],
        ['ns1/red:web', '*:30020', 'balance', ['10.180.0.2:80']],
        ['ns1/idle-red:web', '172.30.0.62:80', 'reject', []],
      ]),
    )
    expect(JSON.stringify(await rows('red'))).not.toMatch(/plain|ns1\/idle:/)
    expect(JSON.stringify(await rows(''))).not.toContain('red')
    expect((await node.command('blue', 'dump')).err).toBe(
      'the kernel holds no objects of kprobe from the proxy "blue"\n',
    )
    const chains = (await node.command('red', 'dump', 'iptables')).out
    expect(chains).toContain(`${RED_CHAINS}-SVL-`)
    expect(chains).not.toContain('KUBE-')
    const names = ['', 'red', 'blue'] as const
    const plans = await Promise.all(names.map(name => node.command(name, 'plan', IPTABLES)))
    expect(plans.map(({ code }) => code)).toEqual([0, 0, 3])
    const asked = ['--from', '10.180.0.7', '--to', '172.30.0.42:80', '-o', 'text']
    expect((await node.command('red', 'explain', IPTABLES, ...asked)).out).toContain(`-j ${RED_CHAINS}-SVC-`)
    const told = JSON.parse((await node.command('', 'doctor', IPTABLES, '-o', 'json')).out).findings
    expect(told).toContainEqual(
      expect.objectContaining({
        kind: 'note',
        subject: `chains ${RED_CHAINS}-* are in ip filter and ip nat and ip6 filter and ip6 nat`,
      }),
    )
    const own = JSON.parse((await node.command('red', 'doctor', IPTABLES, '-o', 'json')).out).findings
    expect(JSON.stringify(own)).not.toContain(`chains ${RED_CHAINS}-*`)
  })

  test('a name whose chains would be those of another one is refused while that one runs', async () => {
    // Two names with the same hash, as far as chains have it.
    const [one, same] = ['p5497', 'p8055'] as const
    expect(chainNames(one).prefix).toBe(chainNames(same).prefix)
    const first = node.launch('red', `--service-proxy-name=${one}`)
    await first.synced()
    const second = node.launch('blue', `--service-proxy-name=${same}`)
    expect(await second.ended()).toMatchObject({ code: 1 })
    expect(second.said('choose another name')).toHaveLength(1)
  })
})
