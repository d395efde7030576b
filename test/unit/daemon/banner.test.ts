import { beforeEach, describe, expect, it } from 'vitest'
import type { Config } from '../../../src/config/config.ts'
import {
  logEnd,
  logFirstSync,
  logMetrics,
  logStart,
  logState,
  reasonOf,
  totalsOf,
} from '../../../src/daemon/banner.ts'
import type { SourceStatus } from '../../../src/source/source.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { recordedLog } from '../../support/recorded-log.ts'
import { endpoint, node, OPTIONS, service, slice, snapshotOf, tableOf } from '../model/objects.ts'

const { log, lines: records } = recordedLog(4)

beforeEach(() => {
  records.length = 0
})

function configOf(...flags: string[]): Config {
  return configFrom(flags, undefined, 'here')
}

const POD = slice('web-1', 'web', [endpoint('10.1.0.1')])

const ABOUT = {
  build: { version: '1.2.3', commit: 'abc', date: '' },
  origins: { mode: 'default', nodeName: 'hostname' },
}

describe('the first lines of the log', () => {
  it('name the build, the mode, the Node, the source, the kernel, and what set them', () => {
    logStart(log, configOf('--source=file:/objects', '--cluster-cidr=10.0.0.0/8'), ABOUT)
    expect(records).toMatchObject([
      {
        level: 'info',
        msg: 'kprobe starting',
        version: '1.2.3',
        commit: 'abc',
        mode: 'nftables',
        modeFrom: 'default',
        node: 'here',
        nodeFrom: 'hostname',
        source: 'file:/objects',
        kernel: expect.stringMatching(/^\d+\./),
        detectLocalMode: 'ClusterCIDR',
        clusterCIDR: ['10.0.0.0/8'],
        nodePortAddresses: ['primary'],
      },
    ])
  })

  it.each([
    ['--iptables-localhost-nodeports=false', 'iptables', 'iptables.localhostNodePorts is false'],
    [
      '--feature-gates=KubeProxyNFTablesLocalhostNodePorts=false',
      'nftables',
      'the feature gate KubeProxyNFTablesLocalhostNodePorts is false',
    ],
    ['--ipvs-scheduler=rr', 'ipvs', 'IPVS mode cannot serve them there'],
  ])('KEP-6032: name what contradicts localhost in nodePortAddresses: %s', (flag, mode, why) => {
    const flags = [
      '--cluster-cidr=10.0.0.0/8',
      `--proxy-mode=${mode}`,
      '--nodeport-addresses=primary,localhost',
    ]
    logStart(log, configOf(...flags, flag), ABOUT)
    expect(records[1]).toMatchObject({
      level: 'warn',
      msg: `node ports are not served at localhost: ${why}`,
    })
    records.length = 0
    logStart(log, configOf(...flags.slice(0, 2), flag), ABOUT)
    expect(records).toHaveLength(1)
  })

  it('warn as kube-proxy does where no cluster CIDR is specified', () => {
    logStart(log, configOf(), ABOUT)
    expect(records[1]).toMatchObject({
      level: 'warn',
      msg: expect.stringMatching(/^no cluster CIDR specified: /),
    })
    records.length = 0
    logStart(log, configOf('--detect-local-mode=NodeCIDR'), ABOUT)
    expect(records).toMatchObject([{ detectLocalMode: 'NodeCIDR' }])
  })
})

it('counts at the first sync, and names the addresses at which node ports answer', () => {
  const options = { ...OPTIONS, nodePortSelection: { primary: true, cidrs: [] } }
  const odd = service('odd', { clusterIP: '10.96.0.9', clusterIPs: ['10.96.0.9'] })
  const table = tableOf([node({ ips: ['192.168.1.7'] }), service('web'), odd, POD], options)
  const written = { commits: 2, changes: 7, bytes: 300, durationMs: 3.6 }
  logFirstSync(log, { table, quarantined: ['ns/odd'], written }, configOf())
  expect(records).toMatchObject([
    {
      msg: 'first sync complete',
      services: 1,
      frontends: 1,
      endpoints: 1,
      quarantined: 1,
      nodeIPs: ['192.168.1.7'],
      nodePorts: { IPv4: ['192.168.1.7'], IPv6: 'all' },
      changes: 7,
      bytes: 300,
      durationMs: 4,
    },
  ])
})

it('counts each endpoint that one of the two lists of a port has', () => {
  const here = endpoint('10.1.0.1', { nodeName: OPTIONS.nodeName })
  const slices = slice('web-1', 'web', [here, endpoint('10.1.0.2')])
  const countOf = (spec: object) =>
    totalsOf(tableOf([node(), service('web', { ...spec }), slices]), []).endpoints
  expect(countOf({})).toBe(2)
  expect(countOf({ internalTrafficPolicy: 'Local' })).toBe(1)
  const both = { type: 'NodePort', externalTrafficPolicy: 'Local', ports: [{ port: 80, nodePort: 30_080 }] }
  expect(countOf(both)).toBe(2)
  // One that drains here is in the list of this node alone.
  const drains = { ready: false, serving: true, terminating: true }
  const draining = endpoint('10.1.0.1', { nodeName: OPTIONS.nodeName, conditions: drains })
  const others = slice('web-1', 'web', [draining, endpoint('10.1.0.2')])
  expect(totalsOf(tableOf([node(), service('web', both), others]), []).endpoints).toBe(2)
})

it('says after the first sync what nftables mode would win', () => {
  const web = tableOf([service('web'), POD])
  const written = { commits: 1, changes: 1, bytes: 1, durationMs: 1 }
  logFirstSync(log, { table: web, quarantined: [], written }, configOf('--proxy-mode=iptables'))
  expect(records.map(({ level, msg }) => [level, msg])).toEqual([
    ['info', 'first sync complete'],
    [
      'info',
      expect.stringContaining(
        'with 1 Service, a new connection costs the kernel up to 5 µs in iptables mode',
      ),
    ],
  ])
  logFirstSync(
    log,
    { table: web, quarantined: [], written },
    configOf('--proxy-mode=iptables', '--iptables-optimize'),
  )
  expect(records.slice(2).map(({ msg }) => msg)).toEqual(['first sync complete'])
})

const NOT_SYNCED = 'exiting: SIGTERM; no sync was complete: the kernel keeps the rules that it has'

it('says why it ends, and what becomes of the rules', () => {
  const stop = new AbortController()
  stop.abort('SIGTERM')
  for (const flag of ['--proxy-mode=nftables', '--proxy-mode=userspace', '--backend=dry-run'])
    for (const isSynced of [true, false])
      logEnd(log, configOf(flag), { why: reasonOf(stop.signal), isSynced })
  expect(records.map(({ msg }) => msg)).toEqual([
    'exiting: SIGTERM; rules stay in the kernel',
    NOT_SYNCED,
    'exiting: SIGTERM; connections that this process relays end; rules stay in the kernel',
    NOT_SYNCED,
    'exiting: SIGTERM; nothing was written',
    'exiting: SIGTERM; nothing was written',
  ])
})

it('logs metrics as one record each', () => {
  logMetrics(
    log,
    '# HELP a A.\n# TYPE a counter\na 3\nb{c="d e"} 0.5\nt 1795420776.914\nu 0.21534282200000007\n',
  )
  expect(records).toMatchObject([
    { level: 'trace', metric: 'a', value: 3 },
    { level: 'trace', metric: 'b', labels: 'c=d e', value: 0.5 },
    { level: 'trace', metric: 't', value: 1_795_420_776.914 },
    { level: 'trace', metric: 'u', value: 0.215343 },
  ])
})

it('logs the state in one record', () => {
  const objects = [node(), service('web'), POD]
  logState(log, stateFacts(objects, { trouble: 'services: denied' }))
  expect(records).toMatchObject([
    {
      msg: 'state',
      mode: 'nftables',
      services: 1,
      endpoints: 1,
      synced: 3,
      quarantined: 0,
      node: 'found',
      healthz: 503,
      reason: 'why',
      trouble: 'services: denied',
      silentMs: 2_500,
    },
  ])
})

it('tells a Node that the source lacks from one that was not read yet', () => {
  logState(log, stateFacts([], {}))
  logState(log, stateFacts([], { missing: ['nodes'] }))
  expect(records.map(({ node }) => node)).toEqual(['not found', 'not read yet'])
})

function stateFacts(objects: Parameters<typeof snapshotOf>[0], source: Partial<SourceStatus>) {
  const snapshot = snapshotOf(objects)
  const held = { table: tableOf(objects), snapshot, memo: undefined, syncedNumber: 3 }
  const synced = { ...held, quarantined: [], failedFamily: undefined }
  return {
    activeMode: { mode: 'nftables' as const, status: { ...synced, error: undefined } },
    source: { missing: [], heardMs: 1_000, trouble: undefined, ...source },
    snapshot,
    health: {
      code: 503 as const,
      body: { lastUpdated: '', currentTime: '', healthy: false, reason: 'why', status: {} },
    },
    nowMs: 3_500.4,
  }
}
