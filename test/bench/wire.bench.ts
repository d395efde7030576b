import { performance } from 'node:perf_hooks'
import { createListReader } from '../../src/source/kube/wire/encodings.ts'
import type { ApiKind, ApiObject } from '../../src/source/kube/wire/tables.ts'
import { encodeList } from '../support/apiserver/encode-protobuf.ts'
import { serviceObject, sliceObject } from './cluster.ts'
import { childResult, goal, median, print } from './report.ts'

const OBJECTS = 10_000
const ENDPOINTS = 10
const ROUNDS = 7
const RUNS = 5
const CHUNK_BYTES = 64 * 1024

const METHODS = ['protobuf', 'json', 'JSON.parse'] as const
type Method = (typeof METHODS)[number]

/** Milliseconds of a first run that are to be met with protobuf, and once warm: docs of the wire format. */
const GOALS = { EndpointSlice: [150, 100], Service: [66, 23] } as const
type Kind = keyof typeof GOALS

interface Result {
  readonly bytes: number
  readonly firstMs: number
  readonly warmMs: number
  readonly longestPushMs: number
  readonly peakMiB: number
}

const [, , method, kind] = process.argv
if (method !== undefined && kind !== undefined) console.log(JSON.stringify(measure(method, kind)))
else compare()

/** One cold process: the body of a list in pieces, to objects that are dropped as they come. */
function measure(method: string, kind: string): Result {
  const body = bodyOf(kind, method === 'protobuf')
  globalThis.gc?.()
  const before = process.memoryUsage.rss()
  const rounds = Array.from({ length: ROUNDS }, () => {
    const start = performance.now()
    const longestPushMs = method === 'JSON.parse' ? parse(body) : read(method, kind, body)
    return { tookMs: performance.now() - start, longestPushMs }
  })
  return {
    bytes: body.length,
    firstMs: rounds[0]?.tookMs ?? 0,
    warmMs: median(rounds.slice(-3).map(({ tookMs }) => tookMs)),
    longestPushMs: Math.max(...rounds.map(({ longestPushMs }) => longestPushMs)),
    peakMiB: (process.resourceUsage().maxRSS * 1024 - before) / 2 ** 20,
  }
}

function bodyOf(kind: string, isProtobuf: boolean): Buffer {
  const items: ApiObject[] = Array.from({ length: OBJECTS }, (_, index) =>
    stored(kind === 'Service' ? serviceObject(index) : sliceObject(index, ENDPOINTS)),
  )
  const metadata = { resourceVersion: '1' }
  if (isProtobuf) return encodeList(kind, items, metadata)
  const apiVersion = items[0]?.apiVersion
  return Buffer.from(JSON.stringify({ kind: `${kind}List`, apiVersion, metadata, items }))
}

/** As an object comes back from the server: with times and managed fields, which are a third of it. */
function stored(object: object): ApiObject {
  const plain: ApiObject & { metadata?: object } = { ...object }
  const fields = Object.keys(plain).map(name => [`f:${name}`, { 'f:a': {}, 'f:b': {} }])
  const metadata = {
    ...plain.metadata,
    resourceVersion: '123456',
    generation: 1,
    creationTimestamp: '2026-01-02T03:04:05Z',
    managedFields: [
      {
        manager: 'kube-controller-manager',
        operation: 'Update',
        apiVersion: 'v1',
        time: '2026-01-02T03:04:05Z',
        fieldsType: 'FieldsV1',
        fieldsV1: Object.fromEntries(fields),
      },
    ],
  }
  return { ...plain, metadata }
}

function read(method: string, kind: string, body: Buffer): number {
  let count = 0
  const contentType = method === 'protobuf' ? 'application/vnd.kubernetes.protobuf' : 'application/json'
  const reader = createListReader(contentType, {
    kind: apiKind(kind),
    objectBytesMax: 1 << 24,
    onItem: () => {
      count++
    },
  })
  let longestMs = 0
  for (let at = 0; at < body.length; at += CHUNK_BYTES) {
    const start = performance.now()
    reader.push(body.subarray(at, at + CHUNK_BYTES))
    longestMs = Math.max(longestMs, performance.now() - start)
  }
  reader.end()
  if (count !== OBJECTS) throw new Error(`${count} objects were read`)
  return longestMs
}

function apiKind(kind: string): ApiKind {
  return kind === 'Service' ? 'Service' : 'EndpointSlice'
}

/** What a client does that has no reader: the whole text, then the whole value. */
function parse(body: Buffer): number {
  const start = performance.now()
  const { items } = JSON.parse(body.toString('utf8'))
  if (items.length !== OBJECTS) throw new Error(`${items.length} objects were read`)
  return performance.now() - start
}

function compare(): void {
  for (const kind of ['EndpointSlice', 'Service'] as const) {
    const results = METHODS.map(method => ({ method, result: typical(method, kind) }))
    const parsed = results.at(-1)?.result.warmMs ?? 0
    const rows = results.map(({ method, result }) => ({
      by: method,
      MB: (result.bytes / 1e6).toFixed(1),
      'first ms': figure(method, result.firstMs, GOALS[kind][0]),
      'warm ms': figure(method, result.warmMs, GOALS[kind][1]),
      'JSON.parse takes': `${(parsed / result.warmMs).toFixed(1)} times as long`,
      'longest push ms': result.longestPushMs.toFixed(1),
      'peak above the body MiB': result.peakMiB.toFixed(0),
    }))
    const what = kind === 'Service' ? `${OBJECTS} Services` : `${OBJECTS} slices x ${ENDPOINTS}`
    print(`${what}: the body of a list to objects, one cold process each, medians of ${RUNS}`, rows)
  }
}

function typical(method: Method, kind: Kind): Result {
  const runs = Array.from({ length: RUNS }, () => childResult<Result>([method, kind]))
  const pick = (key: keyof Result): number => median(runs.map(run => run[key]))
  return {
    bytes: pick('bytes'),
    firstMs: pick('firstMs'),
    warmMs: pick('warmMs'),
    longestPushMs: pick('longestPushMs'),
    peakMiB: pick('peakMiB'),
  }
}

function figure(method: Method, ms: number, most: number): string {
  return method === 'protobuf' ? `${ms.toFixed(0)} ${goal(ms, most)}` : ms.toFixed(0)
}
