import { describe, expect, it } from 'vitest'
import { readStatus, statusOf } from '../../../../../src/source/kube/wire/encodings.ts'
import { encodeObject, encodeStatus } from '../../../../support/apiserver/encode-protobuf.ts'
import { JSON_TYPE, PROTOBUF } from './bodies.ts'

const tooLarge = {
  apiVersion: 'v1',
  kind: 'Status',
  metadata: {},
  status: 'Failure',
  message: 'Timeout: Too large resource version: 9, current: 1',
  reason: 'Timeout',
  details: {
    causes: [{ reason: 'ResourceVersionTooLarge', message: 'Too large resource version' }],
    retryAfterSeconds: 1,
  },
  code: 504,
} as const

const jsonOf = (object: unknown): Buffer => Buffer.from(JSON.stringify(object))

describe('a Status', () => {
  it('is read from either encoding', () => {
    const status = {
      code: 504,
      reason: 'Timeout',
      message: 'Timeout: Too large resource version: 9, current: 1',
      causes: ['ResourceVersionTooLarge'],
      retryAfterSeconds: 1,
    }
    expect(readStatus(PROTOBUF, encodeStatus(tooLarge))).toEqual(status)
    expect(readStatus(`${JSON_TYPE}; charset=utf-8`, jsonOf(tooLarge))).toEqual(status)
    expect(statusOf(tooLarge)).toEqual(status)
  })

  it('may be without nearly everything', () => {
    const bare = { apiVersion: 'v1', kind: 'Status' }
    const status = { code: 0, reason: '', message: '', causes: [], retryAfterSeconds: undefined }
    expect(readStatus(PROTOBUF, encodeStatus({}))).toEqual(status)
    expect(readStatus(JSON_TYPE, jsonOf(bare))).toEqual(status)
    const odd = { ...bare, code: '410', reason: 1, details: { causes: [1, {}], retryAfterSeconds: '1' } }
    expect(readStatus(JSON_TYPE, jsonOf(odd))).toEqual(status)
  })

  it('is not what another body is', () => {
    const service = { apiVersion: 'v1', kind: 'Service', metadata: { name: 'a' } }
    expect(readStatus(PROTOBUF, encodeObject(service))).toBeUndefined()
    expect(readStatus(JSON_TYPE, jsonOf(service))).toBeUndefined()
    expect(readStatus('text/html', Buffer.from('<h1>Bad Gateway</h1>'))).toBeUndefined()
    expect(readStatus(JSON_TYPE, Buffer.from('<h1>'))).toBeUndefined()
    expect(readStatus(PROTOBUF, Buffer.from('404 page not found\n'))).toBeUndefined()
  })
})
