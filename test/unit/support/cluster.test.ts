import { spawnSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, describe, expect, it, vi } from 'vitest'
import { removeDeadClusters } from '../../cluster/cluster.ts'
import { difference, lifeTable } from '../../cluster/life.ts'
import { EVENTS } from '../../cluster/life-events.ts'
import { LIFE_SETS } from '../../cluster/life-sets.ts'
import { parseOptions } from '../../cluster/options.ts'
import { releaseBefore } from '../../cluster/previous.ts'
import { baselineOf, outcomesOf, type Report, worseThan } from '../../cluster/report.ts'
import { clustersFolder, DEFAULTS, nameOfProcess, planSite } from '../../cluster/site.ts'
import { type Counts, type Flow, type Kind, Sender } from '../../cluster/traffic.ts'

const spec = (name: string, State: string, Message = '', LeafNodeType = 'It') => ({
  LeafNodeType,
  LeafNodeText: name,
  ContainerHierarchyTexts: ['[sig-network] Services'],
  State,
  RunTime: 1_260_000_000,
  Failure: { Message },
})

function reportOf(tests: Report['tests'], proxy = 'kprobe'): Report {
  const cluster = { kubernetes: 'v1.37.2', nodes: 3, zones: 3, families: 'ipv4', procs: 4, seconds: 10 }
  return { ...cluster, proxy, mode: 'nftables', suite: 'services', tests }
}

describe('a cluster that lives as long as a process', () => {
  const cache = mkdtempSync(join(tmpdir(), 'kprobe-clusters-'))
  afterEach(() => {
    vi.unstubAllEnvs()
    rmSync(cache, { recursive: true, force: true })
  })

  it('is removed by the next one when its process has ended without doing so', async () => {
    vi.stubEnv('XDG_CACHE_HOME', cache)
    const { pid } = spawnSync('true')
    const dead = nameOfProcess('all', pid)
    const kept = [nameOfProcess('all'), nameOfProcess('down'), 'kprobe', `allp${pid}x`]
    for (const name of [dead, ...kept]) mkdirSync(join(clustersFolder(), name), { recursive: true })
    expect(await removeDeadClusters()).toEqual([dead])
    expect(readdirSync(clustersFolder()).sort()).toEqual(kept.sort())
  })
})

describe('a client that gets no answer', () => {
  const TICKS = 30

  it.each<Kind>(['tcp', 'lasting', 'udp'])('gives up after ticks of its own, over %s', async kind => {
    const server =
      kind === 'udp' ? createSocket('udp4').bind(0, '127.0.0.1') : createServer().listen(0, '127.0.0.1')
    await once(server, 'listening')
    const { port } = server.address() as AddressInfo
    const asked = once(server, kind === 'udp' ? 'message' : 'connection')
    const sender = new Sender(
      { name: 'silent', kind, host: '127.0.0.1', port, server: '' },
      process.pid % 20_000,
    )
    sender.send()
    await asked
    sender.send()
    // Over a lasting connection it would wait for the first one.
    const sent = kind === 'lasting' ? 1 : 2
    for (let tick = 1; tick < TICKS; tick++) sender.tick()
    await new Promise(setImmediate)
    expect(sender.count()).toMatchObject({ sent, failed: 0, ended: 0 })
    sender.tick()
    await sender.settled()
    server.close()
    expect(sender.count()).toMatchObject({ sent, failed: sent, ended: sent })
    expect(sender.count().failures[0]?.error).toBe('no answer within 3 s')
  })
})

describe('requests that fail during an event', () => {
  const flows: readonly Flow[] = [
    { name: 'pod to stable, tcp', kind: 'tcp', host: '10.0.0.1', port: 80, server: 'stable-' },
    { name: 'pod to rolled, tcp', kind: 'tcp', host: '10.0.0.2', port: 80, server: 'rolled-' },
    { name: 'pod to stable, lasting', kind: 'lasting', host: '10.0.0.1', port: 80, server: 'stable-' },
  ]
  const failure = (at: number) => ({ at, error: 'ECONNREFUSED' })
  const before: Counts = {
    'pod to stable, tcp': { sent: 10, failed: 1, ended: 10, failures: [failure(1)] },
    'pod to stable, lasting': { sent: 10, failed: 0, ended: 10, failures: [] },
  }
  const after: Counts = {
    'pod to stable, tcp': { sent: 30, failed: 2, ended: 30, failures: [failure(1), failure(2)] },
    // It had sent nothing before.
    'pod to rolled, tcp': { sent: 20, failed: 1, ended: 20, failures: [failure(3)] },
    'pod to stable, lasting': { sent: 25, failed: 4, ended: 25, failures: [failure(1)] },
  }

  it('are those since its begin, by kind, with the first of them', () => {
    const found = difference(before, after, flows, () => 0)
    expect(found.kinds).toEqual({
      tcp: { sent: 40, failed: 2 },
      'keep-alive': { sent: 0, failed: 0 },
      lasting: { sent: 15, failed: 4 },
      udp: { sent: 0, failed: 0 },
    })
    expect(found.failures.filter(words => words.includes('tcp'))).toEqual([
      '1970-01-01T00:00:00.002Z pod to stable, tcp: ECONNREFUSED',
      '1970-01-01T00:00:00.003Z pod to rolled, tcp: ECONNREFUSED',
    ])
  })

  it('are told apart from those that no proxy can prevent', () => {
    const found = difference(before, after, flows, ({ kind }) => (kind === 'lasting' ? 4 : 0))
    expect(found).toMatchObject({ kinds: { lasting: { sent: 0 } }, allowed: { sent: 15, failed: 4 } })
    const running = { proxy: 'kprobe', mode: 'nftables', form: 'daemonset' } as const
    const [, row] = lifeTable({ ...running, events: [{ name: 'drain', seconds: 1, ...found }] })
    expect(row?.split(/\s{2,}/)).toEqual(['drain', '2 of 40', '-', '-', '-', '4 of 15'])
  })

  it('are failures above what may fail', () => {
    const found = difference(before, after, flows, ({ kind }) => (kind === 'lasting' ? 3 : 0))
    expect(found).toMatchObject({ kinds: { lasting: { failed: 1 } }, allowed: { sent: 15, failed: 3 } })
    expect(found.failures).toHaveLength(3)
  })

  it('cannot be counted where nothing is sent', () => {
    const dead: Counts = { ...after, ...before }
    expect(() => difference(before, dead, flows, () => 0)).toThrow('nothing was sent from pod to stable, tcp')
  })
})

describe('a report', () => {
  const tests = outcomesOf([
    spec('serves', 'passed'),
    spec('panics', 'panicked', 'boom\nat somewhere'),
    spec('needs a cloud', 'skipped', 'no provider'),
    spec('not in the focus', 'skipped'),
    spec('', 'passed', '', 'BeforeSuite'),
  ])

  it('is worse than a baseline where a test failed, or did not run, that passed there', () => {
    const passed = tests.map(test => ({ ...test, state: 'passed' as const }))
    const baseline = baselineOf(
      reportOf([...passed, { name: 'gone', state: 'passed', seconds: 1 }], 'kube-proxy'),
    )
    const worse = worseThan(baseline, reportOf(tests), /./)
    expect(worse.map(line => line.replace(/.*Services /, ''))).toEqual([
      'needs a cloud: passed with kube-proxy, skipped with kprobe',
      'panics: passed with kube-proxy, failed with kprobe',
      'gone: passed with kube-proxy, not run with kprobe',
    ])
    expect(worseThan(baselineOf(reportOf(tests, 'kube-proxy')), reportOf(tests), /./)).toEqual([])
  })
})

describe('a set of events', () => {
  it('runs in a cluster of its own, beside other sets', () => {
    const { command, lifeSets, parameters } = parseOptions(['beside', 'balance', '--nodes', '2'])
    expect(command).toBe('sets')
    expect(lifeSets.map(({ name }) => name)).toEqual(['beside', 'balance'])
    expect(parameters).toMatchObject({ nodes: 2, name: nameOfProcess('all') })
  })

  it('has proxies of its own, and is none of upstream', () => {
    expect(() => parseOptions(['migrate', '--as', 'relay'])).toThrow('--as: not of sets of events')
    expect(() => parseOptions(['migrate', 'services'])).toThrow('set services: not one of migrate')
  })

  it.each(LIFE_SETS.map(({ name }) => name))('%s has events that suit its proxies', name => {
    const life = { site: planSite(DEFAULTS), previous: 'HEAD' }
    const runs = LIFE_SETS.find(set => set.name === name)?.runs ?? []
    for (const { only, ...proxy } of runs) {
      const events = EVENTS.filter(
        event => event.suits(proxy, life) && new RegExp(only ?? '').test(event.name),
      )
      expect(events).toHaveLength(1)
    }
  })
})

describe('the release before', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-releases-'))
  const git = (...args: readonly string[]) => {
    const identity = ['-c', 'user.name=t', '-c', 'user.email=t@example.com']
    expect(spawnSync('git', [...identity, ...args], { cwd: folder }).status).toBe(0)
  }
  const commit = () => git('commit', '--quiet', '--allow-empty', '--message=x')
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  it('is the newest tag of a version before HEAD, and not that of HEAD', () => {
    git('init', '--quiet')
    commit()
    git('tag', 'v0.1.0')
    expect(releaseBefore(folder)).toBeUndefined()
    commit()
    git('tag', 'vendor')
    git('tag', 'v0.2.0')
    expect(releaseBefore(folder)).toBe('v0.1.0')
    commit()
    expect(releaseBefore(folder)).toBe('v0.2.0')
  })
})
