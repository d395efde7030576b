import { describe, expect, it } from 'vitest'
import { WireError } from '../../../../../src/base/errors.ts'
import {
  encodeObject,
  encodeWatchEvent,
  enveloped,
  framed,
} from '../../../../support/apiserver/encode-protobuf.ts'
import { encoded } from '../../../../support/apiserver/encode-table.ts'
import { WATCH_EVENT } from '../../../../support/apiserver/encode-tables.ts'
import { pieces } from './api-arbitraries.ts'
import { PROTOBUF, readWatch } from './bodies.ts'

const service = { apiVersion: 'v1', kind: 'Service', metadata: { name: 'a', resourceVersion: '5' } } as const
const expired = { status: 'Failure', code: 410, reason: 'Expired', message: 'too old' } as const

const event = (type: string, raw: Uint8Array): Buffer => encoded(WATCH_EVENT, { type, object: { raw } })

describe('a watch in protobuf', () => {
  it('gives each event as soon as its last byte is there', () => {
    const body = Buffer.concat(['ADDED', 'DELETED'].map(type => encodeWatchEvent(type, service)))
    for (const length of [1, 3, 50, 1_000]) {
      const events = readWatch(PROTOBUF, pieces(body, [length]))
      expect(events.map(({ type }) => type)).toEqual(['ADDED', 'DELETED'])
      expect(events[1]?.object).toMatchObject(service)
    }
  })

  it('A7: gives bookmarks with their version and annotations', () => {
    const annotations = { 'k8s.io/initial-events-end': 'true', other: 'x' }
    const bookmark = { kind: 'Service', metadata: { resourceVersion: '9', annotations } }
    const [read] = readWatch(PROTOBUF, [encodeWatchEvent('BOOKMARK', bookmark)])
    expect(read?.type).toBe('BOOKMARK')
    expect(read?.object.metadata).toEqual({
      resourceVersion: '9',
      annotations: { 'k8s.io/initial-events-end': 'true' },
    })
  })

  it('gives errors as the Status they are', () => {
    const [read] = readWatch(PROTOBUF, [encodeWatchEvent('ERROR', { kind: 'Status', ...expired })])
    expect(read).toMatchObject({ type: 'ERROR', object: { apiVersion: 'v1', kind: 'Status', ...expired } })
  })

  it('A26: gives events of unknown types, and of objects of another kind their type alone', () => {
    const [unknown] = readWatch(PROTOBUF, [encodeWatchEvent('FOO', service)])
    expect(unknown).toMatchObject({ type: 'FOO', object: service })
    const node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'n' } }
    const table = event(
      'ADDED',
      enveloped({ apiVersion: 'meta.k8s.io/v1', kind: 'Table' }, Buffer.from('junk')),
    )
    const read = readWatch(PROTOBUF, [encodeWatchEvent('ADDED', node), framed(table)])
    expect(read.map(({ object }) => object)).toEqual([
      { apiVersion: 'v1', kind: 'Node' },
      { apiVersion: 'meta.k8s.io/v1', kind: 'Table' },
    ])
  })

  it('understands events in an envelope', () => {
    const bytes = enveloped({ apiVersion: 'v1', kind: 'WatchEvent' }, event('ADDED', encodeObject(service)))
    expect(readWatch(PROTOBUF, [framed(bytes)])).toEqual(
      readWatch(PROTOBUF, [encodeWatchEvent('ADDED', service)]),
    )
  })

  it('is broken by an event that is larger than is accepted, before it has arrived', () => {
    expect(() => readWatch(PROTOBUF, [Buffer.from([0xff, 0xff, 0xff, 0xff])])).toThrow(WireError)
    expect(() => readWatch(PROTOBUF, [Buffer.from([0, 0, 0, 11])], { objectBytesMax: 10 })).toThrow(
      'an event of 11 bytes; 10 are accepted',
    )
  })

  it('is broken by an event without type or object, or with one that is not enveloped', () => {
    for (const frame of [
      Buffer.alloc(0),
      encoded(WATCH_EVENT, { type: 'ADDED', object: {} }),
      event('', encodeObject(service)),
      event('ADDED', Buffer.from('{"kind":"Service"}')),
      Buffer.from([0x0a, 0x7f]),
    ])
      expect(() => readWatch(PROTOBUF, [framed(frame)])).toThrow(WireError)
  })
})
