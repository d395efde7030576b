import { execFileSync } from 'node:child_process'
import { performance } from 'node:perf_hooks'
import { JSONParser } from '@streamparser/json'
import { Map as ImmutableMap } from 'immutable'
import ipaddr from 'ipaddr.js'
import protobuf from 'protobufjs'
import { PersistentMap } from '../../src/base/collections.ts'
import { parseIp } from '../../src/base/ip.ts'
import { JsonItems } from '../../src/source/json-items.ts'
import { createListReader } from '../../src/source/kube/wire/encodings.ts'
import { encodeList } from '../support/apiserver/encode-protobuf.ts'
import { sliceOf } from '../support/apiserver/generator.ts'
import { messagesByGrpcJs, messagesByKprobe } from './library-streams.ts'
import { median, print } from './report.ts'

/*
 * Compares the parts that kprobe writes itself with the libraries that could stand in their place (decision 0007). All
 * run in one process, in turns, so that the ratios hold on a machine of any speed.
 */

const ROUNDS = 7
const SLICES = 5_000
const ENDPOINTS = 10
const PIECE_BYTES = 64 * 1024
const OBJECT_BYTES_MAX = 2 ** 20
const MAP_ENTRIES = 80_000
const MAP_CHANGES = 20_000
const MESSAGES = 20_000

interface Contender {
  readonly by: string
  /** Does the work once and gives a count that shows that it was done. */
  readonly run: () => number | Promise<number>
}

/** Runs each contender in turns and prints its median beside that of the first one, which is ours. */
async function compare(what: string, contenders: readonly Contender[]): Promise<void> {
  const times = new Map<string, number[]>(contenders.map(({ by }) => [by, []]))
  const counts = new Set<number>()
  for (let round = 0; round <= ROUNDS; round++)
    for (const { by, run } of contenders) {
      globalThis.gc?.()
      const start = performance.now()
      counts.add(await run())
      // The first round compiles.
      if (round > 0) times.get(by)?.push(performance.now() - start)
    }
  if (counts.size !== 1) throw new Error(`${what}: the results differ: ${[...counts].join(', ')}`)
  const medians = contenders.map(({ by }) => ({ by, ms: median(times.get(by) ?? []) }))
  const ours = medians[0]?.ms ?? Number.NaN
  print(
    `${what}, medians of ${ROUNDS}`,
    medians.map(({ by, ms }) => ({ by, ms: ms.toFixed(1), 'times ours': (ms / ours).toFixed(2) })),
  )
}

/** The part of discovery.k8s.io/v1 that the generator fills, with the field numbers of its generated.proto. */
const SLICE_PROTO = `
  syntax = "proto2";
  message Time { optional int64 seconds = 1; optional int32 nanos = 2; }
  message Fields { optional bytes raw = 1; }
  message Managed {
    optional string manager = 1; optional string operation = 2; optional string apiVersion = 3;
    optional Time time = 4; optional string fieldsType = 6; optional Fields fieldsV1 = 7;
  }
  message Owner {
    optional string kind = 1; optional string name = 3; optional string uid = 4;
    optional string apiVersion = 5; optional bool controller = 6;
  }
  message Meta {
    optional string name = 1; optional string namespace = 3; optional string uid = 5;
    optional string resourceVersion = 6; optional int64 generation = 7; optional Time creationTimestamp = 8;
    map<string, string> labels = 11; map<string, string> annotations = 12;
    repeated Owner ownerReferences = 13; repeated Managed managedFields = 17;
  }
  message Conditions { optional bool ready = 1; optional bool serving = 2; optional bool terminating = 3; }
  message Reference { optional string kind = 1; optional string namespace = 2; optional string name = 3; optional string uid = 4; }
  message Zone { optional string name = 1; }
  message Hints { repeated Zone forZones = 1; repeated Zone forNodes = 2; }
  message Endpoint {
    repeated string addresses = 1; optional Conditions conditions = 2; optional string hostname = 3;
    optional Reference targetRef = 4; optional string nodeName = 6; optional string zone = 7; optional Hints hints = 8;
  }
  message Port { optional string name = 1; optional string protocol = 2; optional int32 port = 3; optional string appProtocol = 4; }
  message Slice { optional Meta metadata = 1; repeated Endpoint endpoints = 2; repeated Port ports = 3; optional string addressType = 4; }
  message ListMeta { optional string selfLink = 1; optional string resourceVersion = 2; optional string continue = 3; }
  message SliceList { optional ListMeta metadata = 1; repeated Slice items = 2; }
  message Unknown { optional bytes raw = 2; }
`

function slices(): readonly ReturnType<typeof sliceOf>[] {
  return Array.from({ length: SLICES }, (_, index) => {
    const pods = Array.from({ length: ENDPOINTS }, (_, slot) => index * ENDPOINTS + slot)
    return sliceOf(index, { number: 0, pods })
  })
}

function* piecesOf(bytes: Buffer): Generator<Buffer> {
  for (let at = 0; at < bytes.length; at += PIECE_BYTES) yield bytes.subarray(at, at + PIECE_BYTES)
}

function readByKprobe(contentType: string, bytes: Buffer): number {
  let items = 0
  const options = { kind: 'EndpointSlice', objectBytesMax: OBJECT_BYTES_MAX } as const
  const reader = createListReader(contentType, { ...options, onItem: () => items++ })
  for (const piece of piecesOf(bytes)) reader.push(piece)
  reader.end()
  return items
}

async function compareLists(): Promise<void> {
  const items = slices()
  const bytes = encodeList('EndpointSlice', items, { resourceVersion: '1', continue: '' })
  const json = Buffer.from(
    JSON.stringify({
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSliceList',
      metadata: { resourceVersion: '1' },
      items,
    }),
  )
  const { root } = protobuf.parse(SLICE_PROTO)
  const unknown = root.lookupType('Unknown')
  const list = root.lookupType('SliceList')
  const byProtobufjs = (): number => {
    // Four bytes of magic go before the envelope.
    const { raw } = unknown.toObject(unknown.decode(bytes.subarray(4)))
    return list.toObject(list.decode(raw)).items.length
  }
  await compare(
    `a list of ${SLICES} slices x ${ENDPOINTS}, ${(bytes.length / 1e6).toFixed(1)} MB of protobuf`,
    [
      { by: 'kprobe, in pieces', run: () => readByKprobe('application/vnd.kubernetes.protobuf', bytes) },
      { by: 'protobufjs, as a whole', run: byProtobufjs },
    ],
  )
  await compare(`the same list, ${(json.length / 1e6).toFixed(1)} MB of JSON`, [
    { by: 'kprobe, in pieces', run: () => itemsByKprobe(json) },
    { by: '@streamparser/json, in pieces', run: () => itemsByStreamparser(json) },
    { by: 'JSON.parse, as a whole', run: () => JSON.parse(json.toString()).items.length },
  ])
}

function itemsByKprobe(json: Buffer): number {
  const parts = new JsonItems(OBJECT_BYTES_MAX)
  let items = 0
  for (const piece of piecesOf(json))
    for (const { kind, bytes } of parts.push(piece)) {
      JSON.parse(bytes.toString())
      if (kind === 'item') items++
    }
  return items
}

function itemsByStreamparser(json: Buffer): number {
  const parser = new JSONParser({ paths: ['$.items.*'], keepStack: false })
  let items = 0
  parser.onValue = () => {
    items++
  }
  for (const piece of piecesOf(json)) parser.write(piece)
  return items
}

async function compareMaps(): Promise<void> {
  const entries = Array.from(
    { length: MAP_ENTRIES },
    (_, index) => [`namespace/service-${index}`, index] as const,
  )
  await compare(`a map of ${MAP_ENTRIES} entries is built`, [
    { by: 'kprobe', run: () => PersistentMap.from(entries).size },
    { by: 'immutable', run: () => ImmutableMap(entries).size },
  ])
  // Both go forward from their newest version, as the daemon does.
  let ours = PersistentMap.from<number>(entries)
  let theirs = ImmutableMap<string, number>(entries)
  let version = 0
  const keys = entries.slice(0, MAP_CHANGES).map(([key]) => key)
  const changeOurs = (): number => {
    for (const key of keys) ours = ours.with([[key, --version]])
    return ours.size
  }
  const changeTheirs = (): number => {
    for (const key of keys) theirs = theirs.set(key, --version)
    return theirs.size
  }
  await compare(`${MAP_CHANGES} versions of it, one change each`, [
    { by: 'kprobe', run: changeOurs },
    { by: 'immutable', run: changeTheirs },
  ])
  const found = (get: (key: string) => number | undefined): number =>
    entries.filter(([key]) => get(key) !== undefined).length
  await compare('each entry is read', [
    { by: 'kprobe', run: () => found(key => ours.get(key)) },
    { by: 'immutable', run: () => found(key => theirs.get(key)) },
  ])
}

async function compareAddresses(): Promise<void> {
  const texts = Array.from({ length: MAP_ENTRIES }, (_, index) =>
    index % 4 === 0
      ? `fd00::${(index >> 2).toString(16)}`
      : `10.${index >> 16}.${(index >> 8) & 255}.${index & 255}`,
  )
  await compare(`${MAP_ENTRIES} addresses are parsed`, [
    { by: 'kprobe', run: () => texts.reduce((sum, text) => sum + (parseIp(text)?.length ?? 0), 0) },
    {
      by: 'ipaddr.js',
      run: () => texts.reduce((sum, text) => sum + ipaddr.parse(text).toByteArray().length, 0),
    },
  ])
}

execFileSync('ip', ['link', 'set', 'lo', 'up'])
await compareLists()
await compareMaps()
await compareAddresses()
await compare(`${MESSAGES} messages of 90 bytes through gRPC, one by one at the call`, [
  { by: 'kprobe', run: () => messagesByKprobe(MESSAGES) },
  { by: '@grpc/grpc-js', run: () => messagesByGrpcJs(MESSAGES) },
])
