import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { finish } from '../../../../src/base/clock.ts'
import {
  LINE_BYTES_MAX,
  readState,
  SavedStateError,
  STATE_BYTES_MAX,
  STATE_VERSION,
  type StateOwner,
  stateChunks,
} from '../../../../src/daemon/saved/state-file.ts'
import { isRefusal } from '../../../../src/model/fields.ts'
import { parseObject } from '../../../../src/model/parse.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../../../../src/model/snapshot.ts'
import { ip } from '../../../support/addresses.ts'
import { endpoint, eventsOf, node, service, slice, snapshotOf } from '../../model/objects.ts'

const OWNER: StateOwner = {
  node: 'here',
  proxy: '',
  server: 'https://192.0.2.1:6443',
  authorities: ['aa', 'bb'],
}
const OBJECTS = [
  node({ zone: 'a', podCIDRs: ['10.0.0.0/24'] }),
  {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'ServiceCIDR',
    metadata: { name: 'k' },
    spec: { cidrs: ['10.96.0.0/12'] },
  },
  service('web', {
    externalIPs: ['192.0.2.9'],
    loadBalancerSourceRanges: ['10.0.0.0/8'],
    type: 'LoadBalancer',
  }),
  service('six', {
    clusterIP: 'fd00::ff',
    ports: [{ name: 'a', port: 80, nodePort: 30_080 }],
    type: 'NodePort',
  }),
  service('bad', { clusterIP: 'nonsense' }),
  service('named', {}, { metadata: { labels: { 'service.kubernetes.io/service-proxy-name': 'other' } } }),
  slice('web-1', 'web', [
    endpoint('10.1.0.1', {
      nodeName: 'here',
      hints: { forZones: [{ name: 'a' }] },
      targetRef: { kind: 'Pod', name: 'web-0', uid: 'u' },
    }),
    endpoint('10.1.0.2', {
      nodeName: 'there',
      conditions: { ready: false, serving: true, terminating: true },
    }),
  ]),
  slice('empty', 'six', []),
]

function fileOf(snapshot: Snapshot, owner: StateOwner = OWNER): Buffer {
  return Buffer.concat([...stateChunks({ owner, savedAt: '2026-01-01T00:00:00Z' }, snapshot)])
}

function refusalOf(bytes: Buffer, owner: StateOwner = OWNER): string {
  try {
    finish(readState(bytes, owner))
  } catch (error) {
    if (error instanceof SavedStateError) return error.reason
    throw error
  }
  return 'none'
}

afterEach(() => void vi.restoreAllMocks())

describe('a saved state', () => {
  it('is refused for a line that is too long before that is parsed, and is not written with one', () => {
    const lines = fileOf(snapshotOf(OBJECTS)).toString().split('\n')
    const parse = vi.spyOn(JSON, 'parse')
    const long = '['.repeat(30 << 20)
    const header = `${lines[0]?.slice(0, -1)},"x":${long}`
    expect(refusalOf(Buffer.from(`${header}\n`))).toBe('too-large')
    const body = `${lines[0]}\n{"x":${long}\n`
    const sum = JSON.stringify({ sha256: createHash('sha256').update(body).digest('hex') })
    expect(refusalOf(Buffer.from(`${body}${sum}\n`))).toBe('too-large')
    expect(Math.max(0, ...parse.mock.calls.map(([text]) => text.length))).toBeLessThan(1_000)
    const zone = 'z'.repeat(LINE_BYTES_MAX / 1_000)
    const endpoints = Array.from({ length: 1_001 }, () =>
      endpoint('10.1.0.1', { hints: { forZones: [{ name: zone }] } }),
    )
    expect(() => fileOf(snapshotOf([slice('long', 'web', endpoints)]))).toThrow(/a line may have/)
  })

  it('gives the same objects: a list that says the same leaves the Snapshot as it is', () => {
    const read = finish(readState(fileOf(snapshotOf(OBJECTS)), OWNER))
    expect(read.services.size).toBe(4)
    expect(read.sliceByKey.size).toBe(2)
    expect(applyEvents(read, eventsOf(OBJECTS))).toBe(read)
    expect(read.node?.name).toBe('here')
  })

  it('shares what endpoints have in common, as parsed ones do', () => {
    const objects = [1, 2].map(at =>
      slice(`s-${at}`, 'web', [endpoint(`10.1.0.${at}`, { nodeName: 'here' })]),
    )
    const read = finish(readState(fileOf(snapshotOf(objects)), OWNER))
    const traits = read.sliceByKey.values().flatMap(({ endpoints }) => endpoints.map(each => each.traits))
    expect(traits).toHaveLength(2)
    expect(traits[0]).toBe(traits[1])
  })

  it('has the endpoints of the API server, and neither addresses nor listeners of the machine', () => {
    const before = applyEvents(snapshotOf(OBJECTS), [
      { kind: 'LocalIps', value: [ip('192.0.2.77')] },
      { kind: 'ApiEndpoints', value: [{ ip: ip('192.0.2.1'), port: 6443 }] },
      { kind: 'Listeners', key: 'ns/web', value: { taken: [] } },
    ])
    const file = fileOf(before)
    expect(file.toString()).not.toContain('192.0.2.77')
    const read = finish(readState(file, OWNER))
    expect(read.apiEndpoints).toEqual(before.apiEndpoints)
    expect([read.localIps, read.listeners.size]).toEqual([[], 0])
  })

  it('holds no label, annotation or host name', () => {
    const metadata = { annotations: { token: 'secret' }, labels: { a: 'secret' } }
    const objects = [
      service('web', {}, { metadata }),
      slice('web-1', 'web', [endpoint('10.1.0.1', { hostname: 'secret' })]),
    ]
    const events = objects.map(object => {
      const event = parseObject(object, undefined, { details: true })
      if (event === undefined || isRefusal(event)) throw new Error('no event')
      return event
    })
    expect(fileOf(applyEvents(EMPTY_SNAPSHOT, events)).toString()).not.toContain('secret')
  })

  it('is a header, an object a line and a checksum, of a version that changes with what objects consist of', () => {
    const lines = fileOf(snapshotOf(OBJECTS)).toString().trimEnd().split('\n')
    expect(lines[0]).toBe(
      `{"kprobe":"saved-state","version":${STATE_VERSION},"savedAt":"2026-01-01T00:00:00Z","node":"here","proxy":"","server":"https://192.0.2.1:6443","authorities":["aa","bb"]}`,
    )
    expect(lines.at(-1)).toMatch(/^\{"sha256":"[0-9a-f]{64}"\}$/)
    const fields = new Map<string, Set<string>>()
    for (const line of lines.slice(1, -1)) {
      const { kind, value } = JSON.parse(line)
      const known = fields.get(kind) ?? new Set()
      fields.set(kind, known)
      for (const name of Object.keys(value)) known.add(name)
    }
    // Another list here means another STATE_VERSION: an older kprobe would read the objects wrongly.
    expect(
      Object.fromEntries([...fields].map(([kind, names]) => [kind, [...names].sort().join(' ')])),
    ).toEqual({
      Node: 'eligible ips name podCidrs refusals uid zone',
      ServiceCIDR: '0',
      Service:
        'affinityTimeoutS clusterIps creationTimestamp externalIps externalTrafficPolicy healthCheckNodePort internalTrafficPolicy key loadBalancerIps ports proxyName refusals sourceRanges type uid writtenRanges',
      EndpointSlice: 'at family ips key ports refusals service targetNames targetUids traits triggerTimeMs',
    })
    expect(STATE_VERSION).toBe(1)
  })
})

describe('a file that is not used', () => {
  const file = fileOf(snapshotOf(OBJECTS))

  it('is torn when it is cut at any byte', () => {
    for (let length = 0; length < file.length; length++)
      expect([length, refusalOf(file.subarray(0, length))]).toEqual([length, 'torn'])
    expect(refusalOf(file)).toBe('none')
  })

  it('is refused when any byte has changed', () => {
    const at = fc.integer({ min: 0, max: file.length - 1 })
    fc.assert(
      fc.property(at, fc.integer({ min: 1, max: 255 }), (index, change) => {
        const other = Buffer.from(file)
        other[index] = (other[index] ?? 0) ^ change
        expect(refusalOf(other)).toMatch(/^(torn|foreign|version|node|proxy|cluster)$/)
      }),
    )
  })

  it('is refused when other bytes follow, or are in the middle', () => {
    expect(refusalOf(Buffer.concat([file, file]))).toBe('torn')
    expect(refusalOf(Buffer.concat([file, Buffer.from('\n')]))).toBe('torn')
    expect(refusalOf(Buffer.concat([file.subarray(0, 300), file]))).toBe('torn')
  })

  it.each([
    ['foreign', Buffer.from('#!/bin/sh\nexit 0\n')],
    ['foreign', Buffer.from('{"kprobe":"something else"}\n')],
    ['version', Buffer.from('{"kprobe":"saved-state","version":2,"what":"ever"}\n\u0000\u0001')],
    ['torn', Buffer.alloc(0)],
    ['torn', Buffer.from('{"kprobe":"saved-state","version":1}\n')],
  ])('is %s: %s', (reason, bytes) => {
    expect(refusalOf(bytes)).toBe(reason)
  })

  it.each<[string, Partial<StateOwner>]>([
    ['node', { node: 'other' }],
    ['proxy', { proxy: 'edge' }],
    ['cluster', { server: 'https://192.0.2.2:6443' }],
    ['cluster', { authorities: ['cc'] }],
    ['cluster', { authorities: [] }],
    ['none', { authorities: ['bb', 'cc'] }],
  ])('is of another %s: %o', (reason, other) => {
    expect(refusalOf(file, { ...OWNER, ...other })).toBe(reason)
  })

  it('names both sides', () => {
    expect(() => finish(readState(file, { ...OWNER, node: 'other' }))).toThrow(
      'it is of the node "here", and this is other',
    )
  })

  it('would be too large: it is not written', () => {
    const many = Array.from({ length: 1_000 }, (_, at) => service(`s-${at}`))
    const chunks = stateChunks({ owner: OWNER, savedAt: '' }, snapshotOf(many), 200_000)
    expect(() => [...chunks]).toThrow(/ are more than the 200000 B/)
    expect(STATE_BYTES_MAX).toBe(67_108_864)
  })
})
