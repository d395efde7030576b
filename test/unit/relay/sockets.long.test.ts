import { writeFileSync } from 'node:fs'
import { createServer as createHttp2, type ServerHttp2Session } from 'node:http2'
import { connect } from 'node:net'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { framed } from '../../../src/api/grpc/rpc.ts'
import { type ApiAddress, parseApiAddress } from '../../../src/base/api-address.ts'
import { systemClock } from '../../../src/base/clock.ts'
import { runCommand } from '../../../src/commands.ts'
import { openClient } from '../../../src/daemon/open.ts'
import { OPTIONAL_PARTS } from '../../../src/optional-parts.ts'
import { Http2Link, type RelayCall } from '../../../src/relay/connection.ts'
import { discovery } from '../../../src/relay/schema.ts'
import { startRelayServer } from '../../../src/relay/server.ts'
import { RelayState } from '../../../src/relay/state.ts'
import { DELTA_METHOD, HEALTH_METHOD, RELAYED_TYPES } from '../../../src/relay/types.ts'
import type { ApiClient } from '../../../src/source/kube/api-client.ts'
import { KubeSource } from '../../../src/source/kube/kube-source.ts'
import { decodeMessage } from '../../../src/wire/protobuf/decoder.ts'
import type { MessageOf } from '../../../src/wire/protobuf/table.ts'
import { clusterOf, serviceOf } from '../../support/apiserver/generator.ts'
import { ApiServer } from '../../support/apiserver/http-server.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { Follower } from '../../support/follower.ts'
import { REPORT } from '../../support/node-report.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { eventually } from '../../support/patience.ts'
import { identityOf, PROTOBUF } from '../../support/relay.ts'
import { createAuthority } from '../../support/tls.ts'
import { freePort } from '../telemetry/http-client.ts'

type Response = MessageOf<typeof discovery.DeltaDiscoveryResponse>
type Request = MessageOf<typeof discovery.DeltaDiscoveryRequest>

let server: ApiServer
let folder: string
let ends: (() => Promise<unknown>)[]

beforeEach(async () => {
  folder = temporaryFolder()
  server = await ApiServer.start({ bookmarkEveryMs: 1_000 })
  for (const { resource, object } of clusterOf({ services: 20, endpointsPerService: 3, nodes: 3 }))
    server.store.create(resource, object)
  server.store.create('services', identityOf('cluster-a'))
  writeFileSync(join(folder, 'kubeconfig'), server.kubeconfig())
  ends = []
})

afterEach(async () => {
  for (const end of ends.reverse()) await end()
  await server.close()
})

const kubeconfig = (): string => `--kubeconfig=${join(folder, 'kubeconfig')}`
const socket = (name = 'relay'): string => `unix://${folder}/${name}.sock`

/** `kprobe relay` in this process. The result stops it. */
async function relay(...flags: string[]): Promise<() => Promise<number>> {
  const stop = new AbortController()
  const io = new FakeIo({ signal: stop.signal })
  const running = runCommand(['relay', kubeconfig(), '--v=0', ...flags], io)
  running.then(
    code => code === 0 || expect.fail(io.stderr),
    () => undefined,
  )
  const end = async (): Promise<number> => {
    stop.abort()
    return await running
  }
  ends.push(end)
  const at = parseApiAddress(flags[0]?.replace('--listen=', '') ?? '')
  await eventually(() => isOpen(at))
  return end
}

const OPENING = { clock: systemClock, env: {}, warn: () => undefined, parts: OPTIONAL_PARTS }

async function node(...flags: string[]): Promise<Follower> {
  const config = configFrom([kubeconfig(), '--hostname-override=node-1', ...flags])
  const client = await openClient(config, OPENING)
  const follower = new Follower(sourceOf(client, 'node-1'))
  await follower.start()
  ends.push(async () => {
    await client.close()
    await follower.source.stop()
  })
  return follower
}

function sourceOf(client: ApiClient, nodeName: string): KubeSource {
  return new KubeSource({
    client,
    clock: systemClock,
    random: () => 0.5,
    nodeName,
    serviceProxyName: undefined,
    accept: PROTOBUF,
  })
}

/** Waits until the expectations hold. */
async function holds(check: () => unknown): Promise<void> {
  let last: unknown
  const passes = async (): Promise<boolean> => {
    try {
      await check()
      return true
    } catch (error) {
      last = error
      return false
    }
  }
  await eventually(passes).catch(() => {
    throw last
  })
}

/** A client of incremental xDS that knows nothing of kprobe. */
function plainClient(address: string, acknowledges = true) {
  const link = new Http2Link({ address: parseApiAddress(address), tls: undefined, clock: systemClock })
  ends.push(async () => link.close())
  const responses: Response[] = []
  const ended: string[] = []
  const call: RelayCall = link.call(DELTA_METHOD, {
    message: bytes => {
      const response = decodeMessage(discovery.DeltaDiscoveryResponse, Buffer.from(bytes))
      responses.push(response)
      if (acknowledges) say({ type_url: response.type_url, response_nonce: response.nonce })
    },
    ended: (code, text) => void ended.push(`${code} ${text}`),
  })
  const say = (request: Request): void => call.send(framed(discovery.DeltaDiscoveryRequest, request))
  const names = (): string[] =>
    responses.flatMap(({ resources = [] }) => resources.map(its => its.name ?? '')).sort()
  return { responses, ended, say, names }
}

/** How a call ends whose request is so many zeros. */
function endOf(address: string, length: number, method = DELTA_METHOD): Promise<string> {
  const link = new Http2Link({ address: parseApiAddress(address), tls: undefined, clock: systemClock })
  ends.push(async () => link.close())
  const frame = Buffer.alloc(5 + length)
  frame.writeUInt32BE(length, 1)
  return new Promise(resolve => {
    const call = link.call(method, {
      message: () => undefined,
      ended: (code, text) => resolve(`${code} ${text}`),
    })
    call.send(frame)
  })
}

/** `kprobe relay` with mutual TLS, and the flags of a client of it with a certificate. */
async function securedRelay(names = ['127.0.0.1']) {
  const authority = createAuthority()
  const write = (name: string, text: string): string => {
    writeFileSync(join(folder, name), text)
    return join(folder, name)
  }
  const ca = write('ca', authority.caPem)
  const files = (name: string, organizations: readonly string[]) => {
    const { certPem, keyPem } = authority.issue({
      commonName: 'system:node:node-1',
      organizations,
      names,
    })
    return [write(`${name}.crt`, certPem), write(`${name}.key`, keyPem)] as const
  }
  const [cert, key] = files('relay', [])
  const at = `tcp://127.0.0.1:${await freePort()}`
  await relay(`--listen=${at}`, `--api-tls-cert=${cert}`, `--api-tls-key=${key}`, `--api-tls-client-ca=${ca}`)
  const flags = (name: string, organizations: readonly string[], relayCa = ca): readonly string[] => {
    const [clientCert, clientKey] = files(name, organizations)
    return [`--relay-tls-ca=${relayCa}`, `--relay-tls-cert=${clientCert}`, `--relay-tls-key=${clientKey}`]
  }
  return { at, flags, write }
}

/** `kprobe relay status`: its exit code, with what it printed. */
async function statusOf(...flags: string[]): Promise<{ code: number; out: string; err: string }> {
  const io = new FakeIo({})
  const code = await runCommand(['relay', 'status', ...flags], io)
  return { code, out: io.stdout, err: io.stderr }
}

const [SERVICES, , NODES] = RELAYED_TYPES.map(({ typeUrl }) => typeUrl)

describe('kprobe relay', () => {
  it('serves nodes what the API server has, and they resume at one that was restarted', async () => {
    const direct = await node()
    const end = await relay(`--listen=${socket()}`)
    const far = await node(`--source=relay:${socket('absent')},${socket()}`)
    await holds(() => expect(far.synced).toBe(1))
    await holds(() => expect(far.known).toEqual(direct.known))
    expect(await end()).toBe(0)
    server.store.put('services', serviceOf(3, {}, { port: 9_999 }))
    server.store.delete('services', 'namespace-5/service-5')
    const { length } = far.lists
    await relay(`--listen=${socket()}`)
    await holds(() => expect(far.known).toEqual(direct.known))
    expect(far.spurious).toEqual([])
    expect(far.lists.length).toBe(length)
  })

  it('serves a relay, which serves nodes', async () => {
    const direct = await node()
    await relay(`--listen=${socket('a')}`)
    await relay(`--listen=${socket('b')}`, `--source=relay:${socket('a')}`)
    const far = await node(`--source=relay:${socket('b')}`)
    await holds(() => expect(far.synced).toBe(1))
    server.store.put('services', serviceOf(3, {}, { port: 9_999 }))
    await holds(() => expect(far.known).toEqual(direct.known))
  })

  it('serves a plain client of incremental xDS, which resumes by the versions that it holds', async () => {
    await relay(`--listen=${socket()}`)
    const client = plainClient(socket())
    client.say({ type_url: SERVICES, resource_names_subscribe: ['*'] })
    await holds(() => expect(client.names()).toHaveLength(21))
    server.store.delete('services', 'namespace-5/service-5')
    await holds(() => expect(client.responses.at(-1)?.removed_resources).toEqual(['namespace-5/service-5']))
    const [first] = client.responses[0]?.resources ?? []
    expect(first?.resource?.type_url).toBe(SERVICES)
    expect(first?.version).toMatch(/^\d+$/)
    const held = client.responses.flatMap(({ resources = [] }) =>
      resources.map(its => [its.name, its.version]),
    )
    server.store.put('services', serviceOf(3, {}, { port: 9_999 }))
    const again = plainClient(socket())
    again.say({ type_url: SERVICES, initial_resource_versions: Object.fromEntries(held) })
    await holds(() => {
      expect(again.names()).toEqual(['namespace-3/service-3'])
      expect(again.responses[0]?.removed_resources).toEqual(['namespace-5/service-5'])
    })
  })

  it('serves single names, then all, and refuses types that it does not have', async () => {
    await relay(`--listen=${socket()}`)
    const client = plainClient(socket(), false)
    client.say({ type_url: NODES, resource_names_subscribe: ['node-1', 'no-node'] })
    await holds(() => expect(client.names()).toEqual(['node-1']))
    const [first] = client.responses
    expect(first?.removed_resources).toEqual(['no-node'])
    client.say({ type_url: NODES, response_nonce: first?.nonce, error_detail: { message: 'no' } })
    client.say({ type_url: NODES, resource_names_subscribe: ['node-2'] })
    await holds(() => expect(client.names()).toEqual(['node-1', 'node-2']))
    const [, second] = client.responses
    client.say({ type_url: NODES, resource_names_subscribe: ['*'], response_nonce: second?.nonce })
    await holds(() => expect(client.names()).toContain('node-0'))
    expect(await endOf(socket(), 5_000, HEALTH_METHOD)).toBe(
      '8 a message of 5000 bytes is too long; the limit is 4096',
    )
    const other = plainClient(socket())
    other.say({ type_url: 'type.googleapis.com/envoy.config.cluster.v3.Cluster' })
    await holds(() => expect(other.ended[0]).toContain('3 unknown type'))
  })

  it('F182: serves nodes alone where anyone could connect: by certificates of the group system:nodes', async () => {
    const { at, flags, write } = await securedRelay()
    const as = (name: string, organizations: readonly string[], relayCa?: string) =>
      node(`--source=relay:${at}`, ...flags(name, organizations, relayCa))
    const stranger = await as('stranger', ['system:masters'])
    await holds(() => expect(stranger.problems.join()).toContain('is not of the group system:nodes'))
    const member = await as('member', ['system:nodes'])
    await holds(() => expect(member.synced).toBe(1))
    expect(stranger.synced).toBe(0)
    // Whatever the environment says, a relay of another authority is not believed.
    process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0'
    ends.push(async () => delete process.env.NODE_TLS_REJECT_UNAUTHORIZED)
    const deceived = await as('deceived', ['system:nodes'], write('other-ca', createAuthority().caPem))
    await holds(() => expect(deceived.problems.join()).toMatch(/certificate/))
    expect(deceived.synced).toBe(0)
  })

  it('F207: is found by a DNS name, which its certificate has', async () => {
    for (const name of ['localhost', 'other.test']) {
      const { at, flags } = await securedRelay([name])
      const source = `--source=relay:dns:///localhost:${at.split(':').at(-1)}`
      const its = await node(source, ...flags('member', ['system:nodes']))
      if (name === 'localhost') await holds(() => expect(its.synced).toBe(1))
      else
        await holds(() =>
          expect(its.problems.join()).toContain("Host: localhost. is not in the cert's altnames"),
        )
    }
  })

  it('F193: kprobe relay status counts a report for the node of the certificate alone, and answers nodes alone', async () => {
    const { at, flags } = await securedRelay()
    const member = flags('member', ['system:nodes'])
    const asked = [`--relay=${at}`, ...member]
    await holds(async () => expect((await statusOf(...asked)).code).toBe(3))
    for (const name of ['node-1', 'node-2']) {
      const its = [`--source=relay:${at}`, `--hostname-override=${name}`]
      const config = configFrom([kubeconfig(), ...its, ...member])
      const client = await openClient(config, OPENING)
      ends.push(() => client.close())
      client.report?.({ ...REPORT, held: { Service: '9999999', EndpointSlice: '9999999' } })
      const follower = new Follower(sourceOf(client, name))
      ends.push(() => follower.source.stop())
      await follower.start()
    }
    await holds(async () => {
      const { out } = await statusOf(...asked)
      expect(out).toMatch(/^1 of 3 nodes hold Services of revision \d+, .+: 2 silent \(unknown\)$/m)
      expect(out).toMatch(/^node-2 +silent +\d+ s +no report since the relay started/m)
      expect(out).not.toMatch(/^node-1/m)
    })
    const enough = await statusOf(...asked, '--wait', '--at-least=33%', '-o', 'json')
    expect(enough.code).toBe(0)
    expect(JSON.parse(enough.out)).toMatchObject({
      reached: true,
      wanted: 1,
      states: { holds: 1, silent: 2 },
    })
    const late = await statusOf(
      ...asked,
      '--wait',
      '--service=namespace-0/service-1',
      '--timeout=1',
      '-o',
      'wide',
    )
    expect(late.code).toBe(3)
    expect(late.out).toMatch(/^node-1 +holds .* 9999999 +9999999 +1\.2\.3/m)
    const unread = await statusOf(...asked, '--revision=99999999')
    expect([unread.code, unread.out]).toEqual([1, ''])
    expect(unread.err).toContain('no relay has read revision 99999999 yet')
    const nobody = await statusOf(`--relay=${socket('absent')}`, '--wait', '--timeout=1')
    expect(nobody).toMatchObject({ code: 1, err: expect.stringMatching(/^waiting: .*ENOENT.*\n/) })
    const stranger = await statusOf(`--relay=${at}`, ...flags('stranger', ['system:masters']))
    expect([stranger.code, stranger.out]).toEqual([1, ''])
    expect(stranger.err).toContain('is not of the group system:nodes')
  })

  it('refuses long requests that do not end, once all of them hold too much', async () => {
    const state = new RelayState({ clock: systemClock, proxyName: '' })
    const failed = () => undefined
    const address = socket('bounded')
    const server = await startRelayServer({
      state,
      address,
      clock: systemClock,
      failed,
      partialBytesMax: 1e6,
    })
    ends.push(() => server.close())
    const refused: string[] = []
    const calls = [1, 2, 3, 4].map(() => {
      const link = new Http2Link({ address: parseApiAddress(address), tls: undefined, clock: systemClock })
      ends.push(async () => link.close())
      const ended = (code: number, text: string) => void refused.push(`${code} ${text}`)
      const call = link.call(DELTA_METHOD, { message: () => undefined, ended })
      const frame = Buffer.alloc(300_000)
      frame.writeUInt32BE(400_000, 1)
      call.send(frame)
      return call
    })
    await eventually(() => refused.length > 0)
    expect(refused).toEqual(['8 clients have begun too many long messages'])
    for (const call of calls) call.cancel()
    await eventually(() => server.counts.calls === 0)
    expect(await endOf(address, 300_000)).toContain('3 ')
  })

  it('makes a new connection for a call after the relay has said that it goes', async () => {
    const path = join(folder, 'goes.sock')
    const sessions: ServerHttp2Session[] = []
    const http = createHttp2()
    http.on('session', session => sessions.push(session))
    http.on('stream', stream => {
      stream.on('error', () => undefined)
      stream.respond({ ':status': 200, 'content-type': 'application/grpc' })
    })
    await new Promise<void>(resolve => http.listen(path, resolve))
    const link = new Http2Link({ address: { kind: 'unix', path }, tls: undefined, clock: systemClock })
    ends.push(async () => {
      link.close()
      http.close()
    })
    const begin = () => link.call('/a/b', { message: () => undefined, ended: () => undefined })
    const first = begin()
    await eventually(() => sessions.length === 1)
    await eventually(() => sessions[0]?.state.effectiveLocalWindowSize !== undefined)
    sessions[0]?.close()
    for (let time = 0; time < 20; time++) {
      begin()
      await new Promise(resolve => setImmediate(resolve))
    }
    await eventually(() => {
      begin()
      return sessions.length === 2
    })
    first.cancel()
  })

  it.each([
    ['--listen=tcp://0.0.0.0:12091', 1, 'needs TLS'],
    ['--source=file:/tmp', 2, '--source'],
    ['--relay-fallback=kube', 2, 'needs --source=relay'],
    ['--token-service-accounts=kprobe', 2, '"kprobe" is not NAMESPACE/NAME'],
    ['--token-audience=a', 2, 'needs --token-service-accounts'],
    ['--source=relay:tcp://10.0.0.1:1', 2, 'needs TLS'],
  ])('refuses %s', async (flag, code, why) => {
    const io = new FakeIo()
    expect(await runCommand(['relay', kubeconfig(), flag], io)).toBe(code)
    expect(io.stderr).toContain(why)
  })
})

function isOpen(at: ApiAddress): Promise<boolean> {
  return new Promise(resolve => {
    const probe = at.kind === 'unix' ? connect(at.path) : connect(at.port, '127.0.0.1')
    probe.once('error', () => resolve(false))
    probe.once('connect', () => {
      probe.destroy()
      resolve(true)
    })
  })
}
