import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { parseObject } from '../../../../../src/model/parse.ts'
import type { ApiObject } from '../../../../../src/source/kube/wire/tables.ts'
import { encodeList, encodeObject, encodeWatchEvent } from '../../../../support/apiserver/encode-protobuf.ts'
import { pieces } from './api-arbitraries.ts'
import { JSON_TYPE, PROTOBUF, readList, readWatch } from './bodies.ts'

/** What Go's own serializers write of the same objects: go-serializers.go prints it. */
interface Sample {
  readonly name: string
  /** Base64. */
  readonly protobuf: string
  // biome-ignore lint/suspicious/noExplicitAny: a file of ours, whose shape the tests themselves prove.
  readonly json: any
}

const SAMPLES: readonly Sample[] = JSON.parse(
  readFileSync(new URL('go-serializers.json', import.meta.url), 'utf8'),
)
const LISTS = SAMPLES.filter(({ name }) => name.endsWith('List'))
const WATCH = SAMPLES.find(({ name }) => name === 'watch')

describe("the bytes of Go's serializers", () => {
  it('are what the tests write of the same objects', () => {
    for (const { name, protobuf, json } of SAMPLES) {
      const ours = name.endsWith('List')
        ? encodeList(json.kind.slice(0, -'List'.length), json.items ?? [], json.metadata)
        : name === 'watch'
          ? Buffer.concat(json.map((event: Sample['json']) => encodeWatchEvent(event.type, event.object)))
          : encodeObject(json)
      expect(ours.toString('base64'), name).toBe(protobuf)
    }
  })

  it.each(LISTS)('say the same as a list in protobuf and in JSON: $name', ({ protobuf, json }) => {
    const kind = json.kind.slice(0, -'List'.length)
    const bytes = Buffer.from(protobuf, 'base64')
    const read = readList(PROTOBUF, [bytes], { kind })
    const other = readList(JSON_TYPE, [Buffer.from(JSON.stringify(json))], { kind })
    expect(read.metadata).toEqual(other.metadata)
    expect(read.metadata.resourceVersion).toBe(json.metadata.resourceVersion)
    expect(read.items).toHaveLength(json.items?.length ?? 0)
    // Every field that was read is the field of the JSON form.
    for (const [index, item] of (json.items ?? []).entries())
      expect(item).toMatchObject(jsonPartOf(read.items[index]))
    expect(read.items.map(item => parseObject(item))).toEqual(other.items.map(item => parseObject(item)))
    expect(readList(PROTOBUF, pieces(bytes, [1]), { kind })).toEqual(read)
  })

  it.each(LISTS)('have the fields for back ends, in protobuf and in JSON: $name', sample => {
    const kind = sample.json.kind.slice(0, -'List'.length)
    const parsed = (type: string, bytes: Buffer) =>
      readList(type, pieces(bytes, [1]), { kind, details: true }).items.map(item =>
        parseObject(item, undefined, { details: true }),
      )
    const read = parsed(PROTOBUF, Buffer.from(sample.protobuf, 'base64'))
    expect(read).toEqual(parsed(JSON_TYPE, Buffer.from(JSON.stringify(sample.json))))
    if (sample.name === 'ServiceList')
      expect(read[0]).toMatchObject({
        value: {
          details: {
            labels: { app: 'web', 'service.kubernetes.io/service-proxy-name': 'other' },
            annotations: { 'kprobe.io/tcp-drain': '30s', note: 'ä€😀' },
            targetPorts: { 'http/TCP': 8080, 'dns/UDP': 'dns' },
          },
        },
      })
    if (sample.name === 'EndpointSliceList')
      expect(JSON.stringify(read[0])).toMatch(/"hostnames":\{"[^"]+":"h"\}/)
  })

  it('say the same as a watch in protobuf and in JSON', () => {
    const bytes = Buffer.from(WATCH?.protobuf ?? '', 'base64')
    const lines = WATCH?.json.map((event: object) => `${JSON.stringify(event)}\n`).join('')
    const read = readWatch(`${PROTOBUF};stream=watch`, [bytes])
    const other = readWatch(JSON_TYPE, [Buffer.from(lines)])
    expect(read.map(({ type }) => type)).toEqual(['ADDED', 'BOOKMARK', 'DELETED', 'ERROR'])
    expect(other.map(({ type }) => type)).toEqual(['ADDED', 'BOOKMARK', 'DELETED', 'ERROR'])
    expect(read[1]?.object.metadata).toEqual({
      resourceVersion: '99',
      annotations: { 'k8s.io/initial-events-end': 'true' },
    })
    expect(read[3]?.object).toMatchObject({ kind: 'Status', code: 504, details: { retryAfterSeconds: 1 } })
    for (const index of [0, 2])
      expect(parseObject(read[index]?.object)).toEqual(parseObject(other[index]?.object))
  })
})

/** Without what the reader adds. */
function jsonPartOf(item: ApiObject | undefined): ApiObject {
  const { apiVersion: _apiVersion, kind: _kind, ...rest } = item ?? {}
  return rest
}
