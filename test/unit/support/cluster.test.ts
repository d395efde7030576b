import { spawnSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { removeDeadClusters } from '../../cluster/cluster.ts'
import { etcdCommands } from '../../cluster/control-plane.ts'
import { difference, lifeTable } from '../../cluster/life.ts'
import { parseOptions } from '../../cluster/options.ts'
import {
  baselineOf,
  holdFolder,
  outcomesOf,
  type Report,
  tableOf,
  withPart,
  worseThan,
} from '../../cluster/report.ts'
import { clustersFolder, DEFAULTS, nameOfProcess, planSite } from '../../cluster/site.ts'
import { focusOf, SUITES, skipOf } from '../../cluster/suites.ts'
import { type Counts, dnsQuery, type Flow, hasAddress, type Kind, Sender } from '../../cluster/traffic.ts'

const spec = (name: string, State: string, Message = '', LeafNodeType = 'It') => ({
  LeafNodeType,
  LeafNodeText: name,
  ContainerHierarchyTexts: ['[sig-network] Services'],
  State,
  RunTime: 1_260_000_000,
  Failure: { Message },
})

function reportOf(tests: Report['tests'], proxy = 'kprobe'): Report {
  const cluster = { kubernetes: 'v1.36.3', nodes: 3, zones: 3, families: 'ipv4', procs: 4, seconds: 10 }
  return { ...cluster, proxy, mode: 'nftables', suite: 'services', tests }
}

describe('the plan of a cluster', () => {
  it('gives every node its own addresses, of both families', () => {
    const site = planSite(
      { ...DEFAULTS, name: 'a', nodes: 6, families: ['ipv4', 'ipv6'], zones: 3, net: 7 },
      '/tmp/a',
    )
    const addresses = site.nodes.flatMap(node => [...node.addresses, ...node.podCidrs])
    expect(new Set(addresses).size).toBe(24)
    expect(addresses.every(address => /^(10\.7\.|fd00:7:)/.test(address))).toBe(true)
    // By the first 16 or 64 bits, upstream's tests tell whether an endpoint sees the client or a node.
    const outside = site.subnets.map(({ client }) => client)
    expect(outside).toEqual(['198.18.7.1', 'fd00:7:4::1'])
    expect(outside.some(client => /^(10\.7\.|fd00:7::)/.test(client))).toBe(false)
    expect(site.nodes.map(({ zone }) => zone)).toEqual([
      'zone-1',
      'zone-2',
      'zone-3',
      'zone-1',
      'zone-2',
      'zone-3',
    ])
    expect(site.apiUrl).toBe('https://10.7.0.1:6443')
  })

  it('speaks with the API server by IPv6 where there is no other family', () => {
    const site = planSite(
      { ...DEFAULTS, name: 'a', nodes: 1, families: ['ipv6'], zones: 1, net: 7 },
      '/tmp/a',
    )
    expect(site.apiUrl).toBe('https://[fd00:7::1]:6443')
    expect(site.nodes[0]?.addresses).toEqual(['fd00:7::11'])
  })

  it('shares no cgroup with a cluster of another name', () => {
    const cgroups = ['a', 'b'].flatMap(name =>
      planSite({ ...DEFAULTS, name, nodes: 3, families: ['ipv4'], zones: 1, net: 7 }, '/tmp/a').nodes.map(
        node => node.cgroup,
      ),
    )
    expect(new Set(cgroups).size).toBe(6)
  })
})

describe('the store of a cluster', () => {
  it('has members that know each other, each with ports and a folder of its own', () => {
    const site = planSite({ ...DEFAULTS, members: 3 }, '/tmp/a')
    const binaries = { path: (name: string) => `/bin/${name}`, searchPath: '', images: '' }
    const members = Object.values(etcdCommands(site, binaries))
    const valuesOf = (flag: string) =>
      members.map(({ args }) => args.findLast(arg => arg.startsWith(`--${flag}=`))?.slice(flag.length + 3))
    for (const flag of ['name', 'data-dir', 'listen-client-urls', 'listen-peer-urls'])
      expect(new Set(valuesOf(flag)).size).toBe(3)
    const peers = valuesOf('name').map((name, at) => `${name}=${valuesOf('listen-peer-urls')[at]}`)
    expect(valuesOf('initial-cluster')).toEqual(Array(3).fill(peers.join(',')))
  })
})

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

describe('a client of DNS', () => {
  it('asks for the IPv4 address of a name', () => {
    expect(dnsQuery('web.life').toString('latin1')).toBe(
      'kp\x01\0\0\x01\0\0\0\0\0\0\x03web\x04life\0\0\x01\0\x01',
    )
  })

  it.each([
    ['an address', '6b70818000010001', true],
    ['a question', '6b70010000010001', false],
    ['no such name', '6b70818300010001', false],
    ['no record', '6b70818000010000', false],
    ['half an answer', '6b7081', false],
  ])('%s', (_, header, expected) => {
    expect(hasAddress(Buffer.from(`${header}0000000003`, 'hex'))).toBe(expected)
  })
})

describe('the command line', () => {
  it('runs the conformance tests with kprobe in nftables mode by default', () => {
    const options = parseOptions([])
    expect(options).toMatchObject({ command: 'all', proxies: ['kprobe'], modes: ['nftables'] })
    expect(options.suites.map(({ name }) => name)).toEqual(['conformance'])
  })

  it('gives a cluster that goes after its tests a name of its own, so that two can run at once', () => {
    expect(parseOptions(['services']).parameters.name).toBe(nameOfProcess('all'))
    expect(parseOptions(['up']).parameters.name).toBe('kprobe')
    expect(parseOptions(['life', '--fresh']).parameters.name).toBe(nameOfProcess('all'))
    expect(parseOptions(['services', '--name', 'b']).parameters.name).toBe('b')
  })

  it('takes a set without a command, and lists with commas', () => {
    const options = parseOptions([
      'services',
      'lb',
      '--proxy',
      'kube-proxy,kprobe',
      '--mode',
      'iptables,nftables',
    ])
    expect(options).toMatchObject({ command: 'all', proxies: ['kube-proxy', 'kprobe'] })
    expect(options.modes).toEqual(['iptables', 'nftables'])
    expect(options.suites.map(({ name }) => name)).toEqual(['services', 'lb'])
  })

  it('names everything that is wrong at once', () => {
    expect(() => parseOptions(['up', '--nodes', '0', '--mode', 'ipvs', '--name', 'A B'])).toThrow(
      /--name A B.*\n.*--nodes 0.*\n.*--mode ipvs/,
    )
    expect(() => parseOptions(['fly'])).toThrow('there is no command or set fly')
  })

  it('has pods of kube-proxy in the form of kubeadm alone, and words of commands that are no sets', () => {
    expect(parseOptions(['--as', 'kubeadm'])).toMatchObject({ form: 'kubeadm' })
    expect(parseOptions(['--as', 'kubeadm', '--proxy', 'kube-proxy'])).toMatchObject({ form: 'kubeadm' })
    expect(() => parseOptions(['up', '--fresh'])).toThrow('--fresh: of life alone')
    expect(() => parseOptions(['--as', 'daemonset', '--proxy', 'kube-proxy'])).toThrow('--as daemonset')
    expect(() => parseOptions(['life', '--as', 'deployment', '--rounds', '0'])).toThrow(
      /--as deployment.*\n.*--rounds 0/,
    )
    expect(parseOptions(['traffic', 'a', 'b', 'c']).words).toEqual(['a', 'b', 'c'])
  })

  it('has no userspace mode for kube-proxy', () => {
    expect(() => parseOptions(['--proxy', 'kube-proxy', '--mode', 'userspace'])).toThrow('--mode userspace')
  })

  it('leaves the options of a command to the command', () => {
    expect(parseOptions(['exec', '--name', 'b', 'n1', 'ip', '--brief', 'link'])).toMatchObject({
      command: 'exec',
      words: ['n1', 'ip', '--brief', 'link'],
      parameters: { name: 'b' },
    })
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

  it('has the tests that were chosen, with what came of each', () => {
    expect(tests.map(({ name, state }) => [name.slice('[sig-network] Services '.length), state])).toEqual([
      ['needs a cloud', 'skipped'],
      ['panics', 'failed'],
      ['serves', 'passed'],
    ])
    expect(tableOf(reportOf(tests)).at(-1)).toMatch(/1 of 2 passed, 1 skipped, 10 s$/)
    expect(tableOf(reportOf(tests)).join('\n')).toContain('panics: boom')
  })

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

describe('a baseline', () => {
  const test = (name: string, state: 'passed' | 'failed') => ({ name, state, seconds: 1 })
  const baseline = baselineOf(reportOf([test('a', 'failed'), test('b', 'passed')], 'kube-proxy'))

  it('takes over the tests of a later run, and keeps the others', () => {
    const later = withPart(baseline, reportOf([test('a', 'passed')], 'kube-proxy'))
    expect(later.tests).toEqual({ a: 'passed', b: 'passed' })
    expect(later.suite).toBe('services')
  })

  it('is compared for the chosen tests alone', () => {
    expect(worseThan(baseline, reportOf([]), /^a/)).toEqual([])
    expect(worseThan(baseline, reportOf([]), /^b/)).toEqual([
      'b: passed with kube-proxy, not run with kprobe',
    ])
  })
})

describe('the sets of tests', () => {
  const chosenBy = (name: string) =>
    SUITES.filter(
      ({ focus, skip }) => new RegExp(focus).test(name) && !new RegExp(skip.join('|')).test(name),
    ).map(suite => suite.name)

  it('take a test by its name', () => {
    expect(chosenBy('[sig-network] Services should serve multiport endpoints [Conformance]')).toEqual([
      'conformance',
      'services',
    ])
    expect(chosenBy('[sig-network] Services should be rejected when no endpoints exist')).toEqual([
      'services',
    ])
    expect(chosenBy('[sig-network] LoadBalancers should work [Feature:LoadBalancer]')).toEqual(['lb'])
    expect(chosenBy('[sig-network] Traffic Distribution should route')).toEqual(['network'])
    expect(chosenBy('[sig-network] Services with ingress [Disruptive]')).toEqual([])
  })

  it.each([
    '[sig-network] LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] [Slow] should work',
    '[sig-network] LoadBalancers should work [Feature:LoadBalancer]',
  ])('find by --only the test %s', title => {
    const foundBy = (only: string, its = title) =>
      SUITES.filter(suite => new RegExp(focusOf(suite, only)).test(its)).map(({ name }) => name)
    expect(foundBy('should work')).toEqual(['network', 'lb'])
    expect(foundBy('should fail')).toEqual([])
    expect(foundBy('should fail|should work')).toEqual(['network', 'lb'])
    expect(foundBy('should fail|should work', '[sig-network] Networking should work')).toEqual(['network'])
  })

  it('leave in userspace mode the tests in which an endpoint has to see its client', () => {
    const { tests } = JSON.parse(
      readFileSync('test/cluster/baseline/kube-proxy-nftables-services.json', 'utf8'),
    )
    const leftIn = (mode: string) =>
      SUITES.filter(({ name }) => name === 'services').flatMap(suite =>
        Object.keys(tests).filter(name => new RegExp(skipOf(suite, mode)).test(name)),
      )
    expect(leftIn('nftables')).toEqual([])
    expect(leftIn('userspace').map(name => name.slice('[sig-network] Services should '.length))).toEqual([
      'implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes',
      'preserve source pod IP for traffic thru service cluster IP [LinuxOnly]',
      'support externalTrafficPolicy=Local for type=NodePort',
    ])
  })
})

it('two runs at once do not write into one folder', async () => {
  const folder = `/kprobe-test-${process.pid}`
  const release = await holdFolder(folder)
  await expect(holdFolder(folder)).rejects.toThrow(
    `${folder}: process ${process.pid} writes its results there; wait until it has ended`,
  )
  await release()
  await (await holdFolder(folder))()
})
