import { createHash } from 'node:crypto'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { beforeEach, describe, expect, it, vi } from 'vitest'
import { finish } from '../../../../src/base/clock.ts'
import {
  LINE_BYTES_MAX,
  readState,
  SavedStateError,
  STATE_BYTES_MAX,
  STATE_VERSION,
  StateFile,
  type StateOwner,
  stateChunks,
} from '../../../../src/daemon/saved/state-file.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../../../../src/model/snapshot.ts'
import { ip } from '../../../support/addresses.ts'
import { serviceCidrOf } from '../../../support/apiserver/generator.ts'
import { temporaryFolder } from '../../../support/folder.ts'
import { endpoint, eventsOf, node, service, slice, snapshotOf } from '../../model/objects.ts'

const OWNER: StateOwner = {
  node: 'here',
  proxy: '',
  server: 'https://192.0.2.1:6443',
  authorities: ['aa', 'bb'],
}
const OBJECTS = [
  node({ zone: 'a', podCIDRs: ['10.0.0.0/24'] }),
  serviceCidrOf(['10.96.0.0/12']),
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

function reasonOf(error: unknown): string {
  if (error instanceof SavedStateError) return error.reason
  throw error
}

/** The reason why the file is refused; `none` if it is not. */
function refusalOf(bytes: Buffer, owner: StateOwner = OWNER): string {
  try {
    finish(readState(bytes, owner))
    return 'none'
  } catch (error) {
    return reasonOf(error)
  }
}

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
    const snapshot = applyEvents(EMPTY_SNAPSHOT, eventsOf(objects, { details: true }))
    expect(fileOf(snapshot).toString()).not.toContain('secret')
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

let parent: string
let folder: string
let file: StateFile

beforeEach(() => {
  parent = temporaryFolder()
  folder = join(parent, 'state')
  file = new StateFile(folder, '')
})

const chunks = (...texts: readonly string[]) => texts.map(text => Buffer.from(text))

const outcomeOf = (work: Promise<unknown>) => work.then(() => 'none', reasonOf)

describe('StateFile', () => {
  it('writes a file that only its owner may read, in a folder of the same kind, and nothing else', async () => {
    expect(await file.write(chunks('one ', 'two'))).toBe(7)
    expect(readFileSync(file.path, 'utf8')).toBe('one two')
    expect([statSync(folder).mode & 0o777, statSync(file.path).mode & 0o777]).toEqual([0o700, 0o600])
    expect(readdirSync(folder)).toEqual(['kprobe.state'])
  })

  it('reads what it wrote, and the time of the last confirmation', async () => {
    await file.write(chunks('text'))
    await file.confirm(1_700_000_000_000)
    const read = await file.read()
    expect(read?.bytes.toString()).toBe('text')
    expect(read?.confirmedWallMs).toBe(1_700_000_000_000)
  })

  it('has a file for each proxy', async () => {
    const other = new StateFile(folder, 'edge')
    await file.write(chunks('unnamed'))
    await other.write(chunks('named'))
    expect(readdirSync(folder).sort()).toEqual(['kprobe-edge.state', 'kprobe.state'])
  })

  it('has nothing to read where there is no folder or no file', async () => {
    expect(await file.read()).toBeUndefined()
    mkdirSync(folder, { mode: 0o700 })
    expect(await file.read()).toBeUndefined()
  })

  it('keeps the file when the next one fails in the middle, and leaves no draft', async () => {
    await file.write(chunks('before'))
    function* failing(): Generator<Buffer> {
      yield Buffer.from('half')
      throw new Error('no space')
    }
    await expect(file.write(failing())).rejects.toThrow('no space')
    expect(readFileSync(file.path, 'utf8')).toBe('before')
    expect(readdirSync(folder)).toEqual(['kprobe.state'])
  })

  it('replaces a draft that a killed process left', async () => {
    mkdirSync(folder, { mode: 0o700 })
    writeFileSync(`${file.path}.new`, 'half of', { mode: 0o666 })
    await file.write(chunks('whole'))
    expect(readFileSync(file.path, 'utf8')).toBe('whole')
    expect(statSync(file.path).mode & 0o777).toBe(0o600)
  })

  it('refuses a folder that others may write, for reading and for writing', async () => {
    await file.write(chunks('text'))
    for (const mode of [0o777, 0o1777, 0o720, 0o702]) {
      chmodSync(folder, mode)
      expect(await outcomeOf(file.read())).toBe('permissions')
      expect(await outcomeOf(file.write(chunks('more')))).toBe('permissions')
    }
    chmodSync(folder, 0o755)
    expect(await outcomeOf(file.read())).toBe('none')
  })

  it('refuses a file that others may write, a link, a folder and a pipe in its place', async () => {
    await file.write(chunks('text'))
    chmodSync(file.path, 0o662)
    expect(await outcomeOf(file.read())).toBe('permissions')
    rmSync(file.path)
    symlinkSync('/etc/passwd', file.path)
    expect(await outcomeOf(file.read())).toBe('foreign')
    rmSync(file.path)
    mkdirSync(file.path)
    expect(await outcomeOf(file.read())).toBe('foreign')
  })

  it('replaces a link instead of what it leads to', async () => {
    mkdirSync(folder, { mode: 0o700 })
    const target = join(parent, 'target')
    writeFileSync(target, 'theirs')
    symlinkSync(target, file.path)
    symlinkSync(target, `${file.path}.new`)
    await file.write(chunks('ours'))
    expect(readFileSync(target, 'utf8')).toBe('theirs')
    expect(readFileSync(file.path, 'utf8')).toBe('ours')
  })

  it('refuses a file that is too large without reading it', async () => {
    await file.write(chunks(''))
    truncateSync(file.path, STATE_BYTES_MAX + 1)
    expect(await outcomeOf(file.read())).toBe('too-large')
  })

  it('names a folder that is a file, and one whose parent is missing', async () => {
    writeFileSync(folder, '')
    expect(await outcomeOf(file.read())).toBe('permissions')
    const lost = new StateFile(join(parent, 'no', 'such'), '')
    expect(await outcomeOf(lost.write(chunks('text')))).toBe('unreadable')
    expect(existsSync(join(parent, 'no'))).toBe(false)
  })
})
