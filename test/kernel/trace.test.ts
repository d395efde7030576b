import type { ChildProcess } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import type { TracedPacket } from '../../src/inspect/live/packet-collector.ts'
import { type PacketStory, storyOf } from '../../src/inspect/live/packet-story.ts'
import { RuleNames } from '../../src/inspect/live/rule-names.ts'
import { runInProcess, tool } from '../support/command.ts'
import { Daemons } from '../support/daemon.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { type Flow, Lab } from '../support/lab/lab.ts'
import { balanced, endpoint, serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { CLUSTER_CIDR, NODE_NAME } from '../support/pipeline.ts'
import { Tracing, traceTables } from '../support/tracing.ts'

/* Real packets through the rules in the kernel, and what `kprobe trace` and `kprobe drops` say of them. */

const CLIENT = '192.168.0.9'
const NODE = {
  kind: 'Node',
  apiVersion: 'v1',
  metadata: { name: NODE_NAME },
  status: { addresses: [{ type: 'InternalIP', address: '192.168.0.2' }] },
}
const RANGES = balanced({ loadBalancerSourceRanges: ['198.51.100.0/24'] }, '192.168.7.7')
const OBJECTS = [
  NODE,
  serviceOf('shop/web', '10.96.1.1'),
  sliceOf('shop/web', ['10.1.0.5']),
  serviceOf('shop/empty', '10.96.1.3'),
  serviceOf('shop/guarded', '10.96.1.4', ...RANGES),
  sliceOf('shop/guarded', ['10.1.0.6']),
  serviceOf('shop/far', '10.96.1.5', ...balanced({ externalTrafficPolicy: 'Local' }, '192.168.7.8')),
  sliceOf('shop/far', [endpoint('10.1.0.7', { nodeName: 'other' })]),
]

const PACKET: TracedPacket = {
  id: 1,
  atMs: 0,
  origin: 'interface',
  first: { protocol: 1, source: '\x0a\0\0\x01', destination: '\x0a\0\0\x02', ports: undefined },
  last: { protocol: 1, source: '\x0a\0\0\x01', destination: '\x0a\0\0\x02', ports: undefined },
  inputInterface: 1,
  outputInterface: undefined,
  steps: [],
  end: 'dropped',
  isTorn: false,
}

let lab: Lab
let folder: string
const running: ChildProcess[] = []

beforeAll(async () => {
  lab = await Lab.start()
  folder = mkdtempSync(join(tmpdir(), 'kprobe-trace-'))
  writeFileSync(join(folder, 'objects.json'), JSON.stringify({ kind: 'List', items: OBJECTS }))
})

afterEach(() => {
  for (const child of running.splice(0)) child.kill('SIGKILL')
  tool('nft', 'flush', 'ruleset')
})

afterAll(async () => {
  await lab?.close()
  rmSync(folder, { recursive: true, force: true })
})

async function program(mode: string, ...more: readonly string[]): Promise<void> {
  const args = [
    `--source=file:${folder}`,
    `--hostname-override=${NODE_NAME}`,
    `--cluster-cidr=${CLUSTER_CIDR}`,
  ]
  const { code, err } = await runInProcess(['run', '--once', `--proxy-mode=${mode}`, ...args, ...more])
  expect(code, err).toBe(0)
}

function flowTo(destination: string, port: number, change: Partial<Flow> = {}): Flow {
  return { from: 'outside', source: CLIENT, protocol: 'TCP', destination, port, tries: 1, ...change }
}

async function traced(args: readonly string[], flows: readonly Flow[]): Promise<readonly PacketStory[]> {
  const tracing = await new Tracing([`--count=${flows.length}`, ...args], { running }).started()
  await lab.trace(flows)
  return await tracing.ended()
}

const textsOf = ({ steps }: PacketStory): string =>
  steps.map(({ chain, text }) => `${chain}: ${text}`).join('\n')

describe.each(['nftables', 'iptables'])('kprobe trace in %s mode', mode => {
  it('names Service, rules and end of a packet that goes to an endpoint', async () => {
    await program(mode)
    const [story] = await traced(['--service=shop/web'], [flowTo('10.96.1.1', 80)])
    expect(story).toMatchObject({
      protocol: 'TCP',
      to: '10.96.1.1:80',
      service: 'shop/web:http',
      frontend: 'ClusterIP',
      arrivedBy: 'ext0',
      outcome: { verdict: 'dnat', destination: '10.1.0.5:8080', leftBy: 'pod0' },
      conntrack: { to: '10.96.1.1:80', repliesFrom: '10.1.0.5:8080' },
    })
    if (story === undefined) throw new Error('no packet')
    const answer = 'goes to 10.1.0.5:8080 by pod0, source replaced by '
    expect(story.outcome.answer).toContain(answer)
    expect(textsOf(story)).toContain(
      mode === 'nftables' ? 'ip kube-proxy nat-postrouting: ' : '--comment "shop/web:http cluster IP"',
    )
    if (mode === 'nftables')
      expect(story.steps.flatMap(({ elements }) => elements).join('\n')).toContain('comment "shop/web:http"')
    expect(traceTables()).toEqual([])
  })

  it('gives the reason for which a packet is rejected or dropped', async () => {
    await program(mode)
    const [rejected, dropped] = await traced(
      [`--from=${CLIENT}`, '--reject-only'],
      [flowTo('10.96.1.3', 80), flowTo('192.168.7.7', 80)],
    )
    expect(rejected).toMatchObject({
      service: 'shop/empty:http',
      outcome: { verdict: 'reject', reason: 'no-endpoints' },
    })
    expect(rejected?.conntrack).toBeUndefined()
    expect(dropped).toMatchObject({
      service: 'shop/guarded:http',
      outcome: { verdict: 'drop', reason: 'source-ranges' },
    })
  })

  it('names the rule of another program that drops a packet', async () => {
    await program(mode)
    const rule = 'ip daddr 10.1.0.5 tcp dport 8080 drop comment "no\\u202eway"'
    tool('nft', 'add', 'table', 'inet', 'firewall')
    tool('nft', 'add', 'chain', 'inet', 'firewall', 'strict', '{ type filter hook forward priority 10; }')
    tool(
      'nft',
      ...['add', 'rule', 'inet', 'firewall', 'strict', JSON.parse(`"${rule.replaceAll('"', '\\"')}"`)],
    )
    const [story] = await traced(['--to=10.96.1.1:80'], [flowTo('10.96.1.1', 80)])
    expect(story?.outcome).toEqual({
      verdict: 'drop',
      answer: 'dropped by another program: inet firewall strict, rule 1',
      decidedBy: 'inet firewall strict',
      reason: 'another-program',
    })
    expect(story?.steps.at(-1)).toMatchObject({ rule: 1, verdict: 'drop' })
  })
})

describe('kprobe trace', () => {
  it('leaves nothing behind when it is killed', async () => {
    const tracing = await new Tracing(['--from=192.0.2.1'], { running }).started()
    expect(traceTables()).toHaveLength(1)
    tracing.child.kill('SIGKILL')
    await eventually(() => tracing.code !== undefined)
    await eventually(() => traceTables().length === 0, 'the tables are still there')
  })

  it('numbers rules as they are, and tells a rule that is gone from a policy', async () => {
    const rule = (...words: string[]) =>
      tool('nft', '-a', '-e', ...words, 'inet', 'firewall', 'strict', 'drop')
    tool('nft', 'add', 'table', 'inet', 'firewall')
    tool('nft', 'add', 'chain', 'inet', 'firewall', 'strict', '{ type filter hook forward priority 10; }')
    const handleIn = (echo: string) => BigInt(/# handle (\d+)/.exec(echo)?.[1] ?? '')
    const first = handleIn(rule('add', 'rule'))
    // A clock that stands: nothing is read again because of time.
    const names = new RuleNames({
      clock: new FakeClock(),
      proxy: undefined,
      read: async () => [],
      socket: '/nonexistent',
    })
    const placesOf = async (...handles: readonly (bigint | undefined)[]) => {
      const step = {
        family: 'inet',
        table: 'firewall',
        chain: 'strict',
        verdict: { code: 0, chain: undefined },
      } as const
      const steps = await names.steps({ ...PACKET, steps: handles.map(handle => ({ ...step, handle })) })
      const facts = { row: undefined, tracked: undefined, interfaceName: String, pods: () => undefined }
      const dropped = { ...PACKET, end: 'dropped' } as const
      return steps.map(each => storyOf(dropped, { ...facts, steps: [each] }).outcome.answer)
    }
    const by = 'dropped by another program: inet firewall strict, '
    try {
      await names.load()
      expect(await placesOf(first)).toEqual([`${by}rule 1`])
      const inserted = handleIn(rule('insert', 'rule'))
      expect(await placesOf(inserted, first)).toEqual([`${by}rule 1`, `${by}rule 2`])
      tool('nft', 'delete', 'rule', 'inet', 'firewall', 'strict', 'handle', `${inserted}`)
      expect(await placesOf(inserted, undefined, first)).toEqual([
        `${by}a rule that was removed since`,
        `${by}policy`,
        `${by}rule 1`,
      ])
    } finally {
      await names.close()
    }
  })

  it('says that a packet was lost where no rule of nf_tables dropped it', async () => {
    tool('ip', 'route', 'add', 'blackhole', '10.99.0.0/16')
    const [story] = await traced(['--to=10.99.0.0/16'], [flowTo('10.99.0.1', 80)])
    expect(story?.outcome.verdict).toBe('lost')
  })

  it('stays within its bounds in a flood', async () => {
    tool('ip', 'route', 'replace', 'blackhole', '10.99.0.0/16')
    const tracing = await new Tracing(['--to=10.99.0.0/16', '--rate=5', '--count=5000'], {
      running,
    }).started()
    const began = performance.now()
    await lab.trace(
      Array.from({ length: 100 }, () => flowTo('10.99.0.1', 80, { protocol: 'UDP', tries: 1_000 })),
    )
    tracing.child.kill('SIGINT')
    const stories = await tracing.ended()
    const seconds = (performance.now() - began) / 1_000
    expect(stories.length).toBeGreaterThan(0)
    expect(stories.length).toBeLessThanOrEqual(5 + 5 * Math.ceil(seconds))
    const [, matched = '0'] = /of (\d+) that matched/.exec(tracing.err) ?? []
    expect(Number(matched)).toBeGreaterThanOrEqual(100_000)
    expect(tracing.err).toContain('the rate limit left out the others')
  })

  it('follows and prints only what comes from outside the cluster', async () => {
    const daemons = new Daemons()
    const socket = `--admin-socket=${join(folder, 'admin.sock')}`
    const outside = flowTo('10.96.1.3', 80)
    try {
      const args = [socket, `--cluster-cidr=${CLUSTER_CIDR}`, '--log-rejects=7']
      await daemons.running({ source: join(folder, 'objects.json'), args })
      const wanted = [socket, '--from=outside', '--count=2']
      const tracing = await new Tracing(wanted, { running }).started()
      const dropping = new Tracing(wanted, { command: 'drops', running })
      await eventually(() => hasReader(7) || dropping.code !== undefined, { describe: () => dropping.err })
      await lab.trace([outside, { ...outside, from: 'pod', source: '10.1.0.5' }, outside])
      for (const each of [tracing, dropping])
        expect((await each.ended()).map(({ from }) => from.split(':')[0])).toEqual([CLIENT, CLIENT])
    } finally {
      await daemons.end()
    }
  })

  it('needs rules of kprobe for --service alone', async () => {
    expect(await runInProcess(['trace', '--service=shop/web'])).toMatchObject({
      code: 1,
      err: 'kprobe trace: the kernel holds no rules of kprobe, so that --service has no addresses; use --from or --to\n',
    })
    await program('nftables', '--log-rejects=7')
    expect((await runInProcess(['trace', '--service=shop/wob'])).err).toContain('did you mean shop/web?')
    const drops = (...args: string[]) => runInProcess(['drops', ...args, '--duration=1ms'])
    const near = expect.stringMatching(/^kprobe drops: the kernel holds nothing .* mean shop\/web\?$/m)
    expect(await drops('--service=shop/wob')).toEqual({ code: 1, out: '', err: near })
    expect((await drops('--service=web', '-n=shop')).err).toMatch(/^printed 0 packets/)
  })
})

/** The process that reads the group, as the kernel lists it: the file is there with the first reader of a namespace. */
const hasReader = (group: number): boolean =>
  new RegExp(`^ *${group} `, 'm').test(tool('cat', '/proc/thread-self/net/netfilter/nfnetlink_log'))

/** The command has read the counters, and knows from now on what the kernel leaves out. */
const counting = (reading: Tracing) => eventually(() => reading.err.includes('following packets'))

/** Packets that the rules for IPv4 rejected or dropped. */
function refusedNow(): number {
  const listed = tool('nft', 'list', 'table', 'ip', 'kube-proxy')
  return [...listed.matchAll(/counter packets (\d+) bytes \d+ (?:reject|drop)/g)].reduce(
    (sum, [, n]) => sum + Number(n),
    0,
  )
}

describe('kprobe drops', () => {
  const LOGGED = ['--log-rejects=7']

  async function dropped(args: readonly string[], flows: readonly Flow[]) {
    const reading = new Tracing([`--count=${flows.length}`, ...args], { command: 'drops', running })
    await eventually(() => hasReader(7) || reading.code !== undefined, { describe: () => reading.err })
    await lab.trace(flows)
    return await reading.ended()
  }

  it('names Service, client and reason of what the rules reject and drop', async () => {
    await program('nftables', ...LOGGED)
    const flows = [
      flowTo('10.96.1.3', 80),
      flowTo('10.96.1.1', 81),
      flowTo('192.168.7.7', 80),
      flowTo('192.168.7.8', 80),
    ]
    const drops = await dropped([], flows)
    expect(drops).toMatchObject([
      {
        ...{ to: '10.96.1.3:80', service: 'shop/empty:http' },
        ...{ verdict: 'reject', reason: 'no-endpoints', arrivedBy: 'ext0' },
      },
      { to: '10.96.1.1:81', verdict: 'reject', reason: 'no-such-port' },
      { to: '192.168.7.7:80', service: 'shop/guarded:http', verdict: 'drop', reason: 'source-ranges' },
      { to: '192.168.7.8:80', service: 'shop/far:http', verdict: 'drop', reason: 'no-local-endpoints' },
    ])
    expect(drops.map(({ from }) => from.split(':')[0])).toEqual(flows.map(({ source }) => source))
    expect(await dropped(['--count=1', '--to=10.96.1.1:81'], flows)).toMatchObject([{ to: '10.96.1.1:81' }])
  })

  it.each([
    { how: 'without --iptables-optimize', more: [] },
    { how: 'with --iptables-optimize', more: ['--iptables-optimize'] },
  ])('names them in iptables mode, $how', async ({ more }) => {
    await program('iptables', ...LOGGED, ...more)
    const flows = [flowTo('10.96.1.3', 80), flowTo('192.168.7.7', 80), flowTo('192.168.7.8', 80)]
    expect(await dropped([], flows)).toMatchObject([
      {
        to: '10.96.1.3:80',
        service: 'shop/empty:http',
        verdict: 'reject',
        reason: 'no-endpoints',
        arrivedBy: 'ext0',
      },
      { to: '192.168.7.7:80', service: 'shop/guarded:http', verdict: 'drop', reason: 'source-ranges' },
      { to: '192.168.7.8:80', service: 'shop/far:http', verdict: 'drop', reason: 'no-local-endpoints' },
    ])
    const reading = new Tracing(['--follow', '--service=shop/empty'], { command: 'drops', running })
    await counting(reading)
    await lab.trace([flowTo('10.96.1.3', 80, { protocol: 'TCP', tries: 200 })])
    const counted = [...tool('iptables-nft-save', '-c').matchAll(/^\[(\d+):.*empty.* -j REJECT/gm)]
    reading.child.kill('SIGINT')
    const drops = await reading.ended()
    expect(drops.length).toBeGreaterThan(0)
    expect(counted).toHaveLength(1)
    expect(reading.err).toContain(`left out ${Number(counted[0]?.[1]) - 1 - drops.length}\n`)
  })

  it('has in iptables mode the rules of kube-proxy alone without the flag, and the other commands work with it', async () => {
    await program('iptables')
    const without = tool('iptables-nft-save')
    expect(without).not.toContain('NFLOG')
    await program('iptables', ...LOGGED)
    const rules = tool('iptables-nft-save').split('\n')
    const at = rules.findIndex(rule => rule.includes('empty') && rule.includes('NFLOG'))
    const head =
      '-A KUBE-SERVICES -d 10.96.1.3/32 -p tcp -m comment --comment "shop/empty:http has no endpoints"'
    expect(rules[at]).toBe(
      `${head} -m tcp --dport 80 -m limit --limit 20/sec --limit-burst 50 -j NFLOG --nflog-prefix "kprobe no-endpoints" --nflog-group 7 --nflog-size 128 --nflog-threshold 1`,
    )
    expect(rules.findIndex(rule => rule.startsWith(`${head} -m tcp --dport 80 -j REJECT`))).toBeGreaterThan(
      at,
    )
    const args = [
      `--source=file:${folder}`,
      `--hostname-override=${NODE_NAME}`,
      `--cluster-cidr=${CLUSTER_CIDR}`,
      '--proxy-mode=iptables',
    ]
    expect(await runInProcess(['verify', ...args, ...LOGGED])).toMatchObject({ code: 0 })
    expect(await runInProcess(['verify', '--prove', ...args, ...LOGGED])).toMatchObject({ code: 0 })
    const refused = await runInProcess([
      'explain',
      ...args,
      '--from=192.0.2.10',
      '--to=10.96.1.3:80',
      ...LOGGED,
    ])
    expect(refused.out).toContain('REJECT')
    expect(refused.out).not.toContain('NFLOG')
    await program('iptables')
    expect(tool('iptables-nft-save').replace(/^#.*$/gm, '')).toBe(without.replace(/^#.*$/gm, ''))
    await program('iptables', ...LOGGED)
    const cleaned = await runInProcess(['cleanup', '--proxy-mode=iptables'])
    expect(cleaned.code, cleaned.err).toBe(0)
    expect(tool('iptables-nft-save')).not.toContain('NFLOG')
  })

  it('counts what the limit left out, whatever else is logged to the group', async () => {
    await program('nftables', ...LOGGED)
    const place = ['inet', 'firewall', 'loud'] as const
    tool('nft', 'add', 'table', 'inet', 'firewall')
    tool('nft', 'add', 'chain', ...place, '{ type filter hook prerouting priority -400; }')
    tool('nft', 'add', 'rule', ...place, 'ip', 'daddr', '10.96.1.1', 'log', 'prefix', 'other', 'group', '7')
    const reading = new Tracing(['--follow'], { command: 'drops', running })
    await counting(reading)
    await lab.trace([flowTo('10.96.1.3', 80, { tries: 200 }), flowTo('10.96.1.1', 80, { tries: 400 })])
    const refused = refusedNow()
    reading.child.kill('SIGINT')
    const drops = await reading.ended()
    expect(reading.err).toContain(`printed ${drops.length} packets of ${drops.length} that`)
    expect(reading.err).toContain(`left out ${refused - drops.length}\n`)
  })

  it('has no rule without the flag, and the same ones for the other commands with it', async () => {
    await program('nftables')
    expect(tool('nft', 'list', 'ruleset')).not.toContain('log ')
    expect(await runInProcess(['drops'])).toMatchObject({
      code: 1,
      err: 'kprobe drops: rules of nftables mode log nothing; start the daemon with --log-rejects=GROUP in nftables or iptables mode, or use `kprobe trace --reject-only`\n',
    })
    expect((await runInProcess(['drops', '--service=shop/wob'])).err).toContain('did you mean shop/web?')
    await program('nftables', ...LOGGED)
    expect(tool('nft', 'list', 'chain', 'ip', 'kube-proxy', 'refuse')).toContain(
      'log prefix "kprobe refuse" group 7',
    )
    const args = [
      `--source=file:${folder}`,
      `--hostname-override=${NODE_NAME}`,
      `--cluster-cidr=${CLUSTER_CIDR}`,
    ]
    expect(await runInProcess(['verify', ...args, ...LOGGED])).toMatchObject({ code: 0 })
    expect(await runInProcess(['verify', '--prove', ...args, ...LOGGED])).toMatchObject({ code: 0 })
    expect((await runInProcess(['dump', 'services'])).code).toBe(0)
    await program('nftables')
    expect(tool('nft', 'list', 'ruleset')).not.toContain('log ')
  })

  it('names the group that another process reads', async () => {
    await program('nftables', ...LOGGED)
    const first = new Tracing(['--follow'], { command: 'drops', running })
    await counting(first)
    const { code, err } = await runInProcess(['drops'])
    expect(code).toBe(1)
    expect(err).toContain('NFLOG group 7')
  })
})
