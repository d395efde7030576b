import protobuf from 'protobufjs'
import descriptor from 'protobufjs/ext/descriptor/index.js'
import { afterEach, describe, expect, it } from 'vitest'
import { definitions } from '../../../../src/api/grpc/grpc-server.ts'
import { LOCALV1_ROOT } from '../../../support/api/localv1.ts'
import { type ApiRig, apiRig } from '../../../support/api/rig.ts'
import { EMPTY, feedOf, largeState } from '../../../support/api/states.ts'
import { callUnary, openStream, statusOf, WatchClient } from '../../../support/api/watch-client.ts'
import { eventually } from '../../../support/patience.ts'

let rig: ApiRig | undefined
afterEach(() => rig?.end())

/** The definitions as the server tells them, read by an implementation of protobuf that is not ours. */
function told(files: Iterable<Buffer>): protobuf.Root {
  const file = [...files].map(bytes => descriptor.FileDescriptorProto.decode(bytes))
  const fromDescriptor: unknown = Reflect.get(protobuf.Root, 'fromDescriptor')
  if (typeof fromDescriptor !== 'function') throw new Error('protobufjs reads no descriptors')
  const root: unknown = Reflect.apply(fromDescriptor, protobuf.Root, [{ file }])
  if (!(root instanceof protobuf.Root)) throw new Error('no root')
  root.resolveAll()
  return root
}

const ROOT = told(definitions().byFileName.values())

function encode(type: string, value: object): Buffer {
  const its = ROOT.lookupType(type)
  return Buffer.from(its.encode(its.fromObject(value)).finish())
}

function decode(type: string, bytes: Uint8Array): Readonly<Record<string, unknown>> {
  const its = ROOT.lookupType(type)
  return its.toObject(its.decode(bytes), { longs: Number, enums: String, bytes: Buffer })
}

describe('the definitions that reflection publishes', () => {
  it('are those of KPNG, field by field', () => {
    const types = Object.keys(LOCALV1_ROOT.nested?.localv1?.toJSON().nested ?? {})
    const lines = (root: protobuf.Root): readonly string[] =>
      types
        .map(name => root.lookup(`localv1.${name}`))
        .flatMap(type => (type instanceof protobuf.Type ? type.fieldsArray : []))
        .map(({ parent, name, id, repeated, map, type, partOf }) => {
          const plain = type.replace('.localv1.', '')
          const isMap = map || plain.endsWith('Entry')
          return `${parent?.name}.${name} = ${id} ${isMap ? 'map' : `${plain} ${repeated}`} ${partOf?.name ?? ''}`
        })
    expect(lines(LOCALV1_ROOT)).toContain('OpItem.Delete = 3 Ref false Op')
    expect(lines(LOCALV1_ROOT)).toContain('Service.Labels = 8 map ')
    expect(lines(ROOT)).toEqual(lines(LOCALV1_ROOT))
    expect(ROOT.lookupService('localv1.Sets').methods.Watch?.toJSON()).toMatchObject({
      requestStream: true,
      responseStream: true,
    })
  })

  it.each(['v1', 'v1alpha'])('are published by %s', async version => {
    rig = await apiRig(feedOf(EMPTY))
    const name = `grpc.reflection.${version}`
    const stream = openStream(rig.client(), `/${name}.ServerReflection/ServerReflectionInfo`)
    const answers: Readonly<Record<string, unknown>>[] = []
    stream.on('data', (bytes: Buffer) => answers.push(decode(`${name}.ServerReflectionResponse`, bytes)))
    const asked = [
      { list_services: '' },
      { file_containing_symbol: 'localv1.Sets' },
      { file_containing_symbol: 'localv1.OpItem' },
      { file_by_filename: 'kprobe/v1/status.proto' },
      { file_containing_symbol: 'no.such.thing' },
    ]
    for (const request of asked) stream.write(encode(`${name}.ServerReflectionRequest`, request))
    stream.end()
    expect(await statusOf(stream)).toMatchObject({ code: 0 })
    const [listed, byService, byMessage, byName, unknown] = answers
    expect(listed?.list_services_response).toEqual({
      service: [
        { name: 'localv1.Sets' },
        { name: 'kprobe.v1.Status' },
        { name: 'grpc.health.v1.Health' },
        { name: 'grpc.reflection.v1.ServerReflection' },
        { name: 'grpc.reflection.v1alpha.ServerReflection' },
      ],
    })
    const { byFileName } = definitions()
    const file = (path: string) => ({ file_descriptor_proto: [byFileName.get(path)] })
    expect(byService?.file_descriptor_response).toEqual(file('localv1/localv1.proto'))
    expect(byMessage?.file_descriptor_response).toEqual(file('localv1/localv1.proto'))
    expect(byName?.file_descriptor_response).toEqual(file('kprobe/v1/status.proto'))
    expect(unknown?.error_response).toEqual({ error_code: 5, error_message: 'there is no "no.such.thing"' })
    expect(unknown?.original_request).toEqual({ file_containing_symbol: 'no.such.thing' })
  })
})

describe('health', () => {
  const check = async (service: string): Promise<unknown> =>
    decode(
      'grpc.health.v1.HealthCheckResponse',
      await callUnary(
        rig?.client() ?? never(),
        '/grpc.health.v1.Health/Check',
        encode('grpc.health.v1.HealthCheckRequest', { service }),
      ),
    ).status

  it('is not serving before the first complete list, and then it is', async () => {
    const feed = feedOf()
    rig = await apiRig(feed)
    expect(await check('')).toBe('NOT_SERVING')
    expect(await check('localv1.Sets')).toBe('NOT_SERVING')
    const stream = openStream(rig.client(), '/grpc.health.v1.Health/Watch')
    const statuses: unknown[] = []
    stream.on('error', () => undefined)
    stream.on('data', (bytes: Buffer) =>
      statuses.push(decode('grpc.health.v1.HealthCheckResponse', bytes).status),
    )
    stream.write(encode('grpc.health.v1.HealthCheckRequest', { service: 'localv1.Sets' }))
    await eventually(() => statuses.length === 1, 'the first word')
    feed.offer(EMPTY)
    await eventually(() => statuses.length === 2, 'the second')
    expect(statuses).toEqual(['NOT_SERVING', 'SERVING'])
    expect(await check('')).toBe('SERVING')
  })

  it('rejects a request that is not protobuf', async () => {
    rig = await apiRig(feedOf(EMPTY))
    const request = Buffer.from([0x0a, 5, 0x61])
    await expect(callUnary(rig.client(), '/grpc.health.v1.Health/Check', request)).rejects.toMatchObject({
      code: 3,
      details: 'a field of 5 bytes where 1 are left',
    })
  })

  it('knows what there is', async () => {
    rig = await apiRig(feedOf(EMPTY))
    await expect(check('no.such.Service')).rejects.toMatchObject({ code: 5 })
    const stream = openStream(rig.client(), '/grpc.health.v1.Health/Watch')
    stream.on('error', () => undefined)
    const first = new Promise(resolve => stream.once('data', resolve))
    stream.end(encode('grpc.health.v1.HealthCheckRequest', { service: 'no.such.Service' }))
    expect(await first).toEqual(encode('grpc.health.v1.HealthCheckResponse', { status: 'SERVICE_UNKNOWN' }))
  })
})

describe('kprobe.v1.Status', () => {
  const get = async (): Promise<unknown> =>
    decode(
      'kprobe.v1.GetResponse',
      await callUnary(rig?.client() ?? never(), '/kprobe.v1.Status/Get', Buffer.alloc(0)),
    )

  it('says how old the state is, and whether its source is there', async () => {
    rig = await apiRig(feedOf(largeState(3, 2), { missing: [], heardMs: 0, trouble: 'no route to host' }))
    const waiting = new WatchClient(rig.client())
    await waiting.ask()
    void waiting.ask()
    await eventually(() => rig?.server.counts().waiting === 1, 'it waits')
    expect(await get()).toEqual({
      node_name: 'node-a',
      number: 1,
      services: 3,
      endpoints: 6,
      since_ms: expect.any(Number),
      silent_ms: expect.any(Number),
      trouble: 'no route to host',
      streams: 1,
      waiting: 1,
    })
  })

  it('answers before there is a state', async () => {
    rig = await apiRig(feedOf())
    expect(await get()).toMatchObject({ node_name: 'node-a', source_connected: true })
    await expect(callUnary(rig.client(), '/kprobe.v1.Status/Set', Buffer.alloc(0))).rejects.toMatchObject({
      code: 12,
      details: 'unknown method /kprobe.v1.Status/Set',
    })
  })
})

function never(): never {
  throw new Error('there is no rig')
}
