import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { UNAVAILABLE } from '../../../src/api/grpc/rpc.ts'
import { parseApiAddress } from '../../../src/base/api-address.ts'
import { systemClock } from '../../../src/base/clock.ts'
import { openClient } from '../../../src/daemon/open.ts'
import { OPTIONAL_PARTS } from '../../../src/optional-parts.ts'
import { TokenReviews } from '../../../src/relay/admission.ts'
import { Http2Link, type RelayTlsPems } from '../../../src/relay/connection.ts'
import { encodeReport } from '../../../src/relay/node-report.ts'
import { type RelayServer, startRelayServer } from '../../../src/relay/server.ts'
import { RelayState } from '../../../src/relay/state.ts'
import { DELTA_METHOD, METADATA, RELAYED, SETS_METHOD, STATUS_METHOD } from '../../../src/relay/types.ts'
import type { ApiClient } from '../../../src/source/kube/api-client.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { REPORT } from '../../support/node-report.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { eventually } from '../../support/patience.ts'
import { framedRequest } from '../../support/relay-call.ts'
import { type Asked, ScriptedApi } from '../../support/scripted-api.ts'
import { createAuthority } from '../../support/tls.ts'

const AUDIENCE = 'kprobe-relay'
/** More than a relay rests after a failure. */
const REST_MS = 60_000
/** Nobody waits for it but a test whose request was lost. */
const LOST_MS = 5_000
const USER = 'system:serviceaccount:kube-system:kprobe'

/** Answers as the API server does for the token `TEXT`: those that begin with `good` are of the nodes. */
function review(asked: Asked, change: object = {}): void {
  const { spec } = JSON.parse(asked.request.body ?? '')
  const isGood = String(spec.token).startsWith('good')
  const status = isGood
    ? { authenticated: true, user: { username: USER }, audiences: spec.audiences, ...change }
    : { authenticated: false }
  asked.body(JSON.stringify({ kind: 'TokenReview', spec, status }))
}

const BYTES = encodeReport(REPORT)

async function* bodyOf(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text)
}

function reviews(api?: ApiClient) {
  const clock = new FakeClock()
  const client = new ScriptedApi()
  client.answer('tokenreviews', asked => review(asked))
  const checker = new TokenReviews({
    client: api ?? client,
    clock,
    audience: AUDIENCE,
    serviceAccounts: ['kube-system/kprobe'],
  })
  const why = async (token: string, remoteAddress = '10.0.0.1'): Promise<string | undefined> => {
    const { refusal } = await checker.check({ authorization: `Bearer ${token}`, origin: { remoteAddress } })
    return refusal && `${refusal.code} ${refusal.message}`
  }
  return { client, clock, checker, why }
}

describe('tokens at a relay', () => {
  it('F193: a token bound to a pod names its node', async () => {
    const extra = { 'authentication.kubernetes.io/node-name': ['n1'] }
    const api = new ScriptedApi()
    api.answer('tokenreviews', asked => review(asked, { user: { username: USER, extra } }))
    const { checker } = reviews(api)
    expect(await checker.check({ authorization: 'Bearer good' })).toEqual({
      refusal: undefined,
      node: 'n1',
      user: USER,
    })
  })

  it('F200: takes tokens of its ServiceAccounts and its audience, and no others', async () => {
    const { client, why, checker } = reviews()
    expect(await why('good')).toBeUndefined()
    expect(JSON.parse(client.asked[0]?.request.body ?? '')).toMatchObject({
      spec: { token: 'good', audiences: [AUDIENCE] },
    })
    expect(await checker.check({ authorization: 'Bearer good' })).toEqual({
      refusal: undefined,
      node: undefined,
      user: USER,
    })
    expect(await why('bad')).toBe('16 the API server does not accept the token')
    for (const header of [undefined, '', 'Basic good', 'Bearer', 'Bearer a b', 'Bearer a\nb'])
      expect((await checker.check({ authorization: header })).refusal?.code).toBe(16)
    const refused = [
      [{ audiences: [] }, '16 the token is not for the audience kprobe-relay'],
      [{ audiences: undefined }, '16 the token is not for the audience kprobe-relay'],
      [{ audiences: ['https://kubernetes'] }, '16 the token is not for the audience kprobe-relay'],
      [{ authenticated: 'true' }, '16 the API server does not accept the token'],
      [{ user: { username: `${USER}-2` } }, `7 ${USER}-2 may not read from this relay`],
      [{ user: undefined }, '7  may not read from this relay'],
    ] as const
    for (const [index, [change, text]] of refused.entries()) {
      client.answer('tokenreviews', asked => review(asked, change))
      expect(await why(`good${index}`)).toBe(text)
    }
  })

  it('F200: takes no token without an answer, and asks again for the next call', async () => {
    const { client, why, clock } = reviews()
    client.answer('tokenreviews', asked => asked.status(403, { reason: 'Forbidden' }))
    expect(await why('good')).toBe(`${UNAVAILABLE} the API server does not review the token: status 403`)
    client.answer('tokenreviews', asked => asked.body('{}'))
    expect(await why('good')).toContain('the response is not a TokenReview')
    client.answer('tokenreviews', asked => asked.body(JSON.stringify({ status: { x: 'x'.repeat(70_000) } })))
    expect(await why('good')).toContain('the answer is too long')
    client.answer('tokenreviews', undefined)
    const late = why('good')
    await clock.advance(8_000)
    expect(await late).toContain('aborted')
    client.answer('tokenreviews', asked => review(asked))
    expect(await why('good')).toBeUndefined()
  })

  it('asks once for calls that come together, and again when the answer is old', async () => {
    const { client, why, clock } = reviews()
    expect(await Promise.all([why('good'), why('good'), why('good')])).toEqual([
      undefined,
      undefined,
      undefined,
    ])
    await why('bad')
    await why('bad')
    expect(client.asked).toHaveLength(2)
    await clock.advance(10_000)
    await why('good')
    await why('bad')
    expect(client.asked).toHaveLength(3)
    await clock.advance(290_001)
    client.answer('tokenreviews', asked => review(asked, { authenticated: false }))
    expect(await why('good')).toContain('16 ')
    expect(await why('good')).toContain('16 ')
    expect(client.asked).toHaveLength(4)
  })

  it('F200: remembers so many answers, and strangers do not push nodes out', async () => {
    let asked = 0
    const good = JSON.stringify({
      status: { authenticated: true, user: { username: USER }, audiences: [AUDIENCE] },
    })
    const client: ApiClient = {
      server: '',
      close: async () => undefined,
      send: async ({ body = '' }) => {
        asked++
        const text = body.includes('"token":"good') ? good : '{"status":{}}'
        return { status: 201, contentType: '', retryAfterMs: undefined, body: bodyOf(text) }
      },
    }
    const { why } = reviews(client)
    await why('good')
    for (let index = 0; index < 1_100; index++) await why(`bad${index}`)
    const before = asked
    await why('good')
    await why('bad1099')
    expect(asked).toBe(before)
    await why('bad0')
    expect(asked).toBe(before + 1)
    for (let index = 0; index < 4_096; index++) await why(`good${index}`)
    await why('good')
    expect(asked).toBe(before + 4_098)
  })

  it('F204: reviews so many tokens at a time, and strangers of some addresses keep no node waiting', async () => {
    const { client, why } = reviews()
    client.answer('tokenreviews', undefined)
    const busy = `${UNAVAILABLE} too many tokens are being reviewed`
    const strangers: Promise<string | undefined>[] = []
    for (let index = 0; index < 125; index++) strangers.push(why(`bad${index}`))
    expect(await why('bad')).toBe(busy)
    for (let index = 125; index < 1_000; index++)
      strangers.push(why(`bad${index}`, `10.0.${Math.floor(index / 125)}.1`))
    expect(client.asked).toHaveLength(1_000)
    const node = why('good', '10.1.0.1')
    expect(await Promise.race(strangers)).toContain('aborted')
    const last = client.asked.at(-1)
    if (last !== undefined) review(last)
    expect(await node).toBeUndefined()
  })
})

describe('a relay that takes tokens', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-admission-'))
  const authority = createAuthority()
  const server = authority.issue({ names: ['relay.test'] })
  const write = (name: string, text: string): string => {
    writeFileSync(join(folder, name), text)
    return join(folder, name)
  }
  let ends: (() => unknown)[]
  let api: ScriptedApi
  let relay: RelayServer
  let state: RelayState
  const refused: string[] = []

  beforeEach(async () => {
    api = new ScriptedApi()
    api.answer('tokenreviews', asked => review(asked))
    ends = []
    refused.length = 0
    relay = await start(write('ca', authority.caPem))
  })

  afterEach(async () => {
    for (const end of ends.reverse()) await end()
  })

  async function start(clientCaFile: string, trustedUsers: readonly string[] = []): Promise<RelayServer> {
    const tls = { certFile: write('crt', server.certPem), keyFile: write('key', server.keyPem), clientCaFile }
    state = new RelayState({ clock: systemClock, proxyName: '' })
    const started = await startRelayServer({
      state,
      address: 'tcp://127.0.0.1:0',
      tls,
      trustedUsers,
      sets: () => expect.fail('no request was short enough'),
      tokens: new TokenReviews({
        client: api,
        clock: systemClock,
        audience: AUDIENCE,
        serviceAccounts: ['kube-system/kprobe'],
      }),
      unauthorized: why => void refused.push(why),
      clock: systemClock,
      failed: () => undefined,
    })
    ends.push(() => started.close())
    return started
  }

  /** How a request for an unknown type ends: who is let in hears that it is unknown. */
  function answer(pems: Partial<RelayTlsPems>, token?: string, id = ''): Promise<string> {
    const metadata = id === '' ? {} : { [METADATA.report]: BYTES }
    const request = framedRequest({ id, metadata, type_url: 'unknown' })
    return endOf(DELTA_METHOD, request, pems, token)
  }

  function endOf(
    method: string,
    request: Buffer,
    pems: Partial<RelayTlsPems>,
    token?: string,
  ): Promise<string> {
    const link = linkOf(pems, token)
    return new Promise(resolve => {
      const call = link.call(method, {
        message: () => undefined,
        ended: (code, text) => resolve(`${code} ${text}`),
      })
      call.send(request)
      call.finish()
    })
  }

  function linkOf(pems: Partial<RelayTlsPems>, token?: string): Http2Link {
    const link = new Http2Link({
      address: parseApiAddress(relay.address),
      tls: async () => ({
        ca: authority.caPem,
        cert: undefined,
        key: undefined,
        servername: 'relay.test',
        ...pems,
      }),
      token: token === undefined ? undefined : async () => token,
      clock: systemClock,
    })
    ends.push(() => link.close())
    return link
  }

  const KNOWN = '3 unknown type "unknown"'

  it('lets nodes in by token or by certificate', async () => {
    expect(await answer({}, 'good')).toBe(KNOWN)
    const node = authority.issue({ organizations: ['system:nodes'] })
    expect(await answer({ cert: node.certPem, key: node.keyPem })).toBe(KNOWN)
    expect(api.asked).toHaveLength(1)
    expect(relay.counts.unauthorized).toBe(0)
  })

  it('takes short requests alone for Sets and the status', async () => {
    const long = Buffer.concat([Buffer.from([0, 0, 0, 0x13, 0x88]), Buffer.alloc(5_000)])
    for (const method of [SETS_METHOD, STATUS_METHOD])
      expect(await endOf(method, long, {}, `good-${method.length}`)).toBe(
        '8 a message of 5000 bytes is too long; the limit is 4096',
      )
  })

  it('F201: believes no certificate that its authority has not signed, and no other token', async () => {
    expect(await answer({})).toContain('16 the client shows neither a certificate')
    expect(await answer({}, 'bad')).toBe('16 the API server does not accept the token')
    const forged = createAuthority('another').issue({ organizations: ['system:nodes'] })
    expect(await answer({ cert: forged.certPem, key: forged.keyPem })).toContain('16 ')
    // Of an authority of the same name: OpenSSL may end the connection for the wrong signature.
    const alike = createAuthority().issue({ organizations: ['system:nodes'] })
    expect(await answer({ cert: alike.certPem, key: alike.keyPem })).toMatch(/^1[46] /)
    const user = authority.issue({ organizations: ['system:masters'] })
    expect(await answer({ cert: user.certPem, key: user.keyPem })).toContain('16 ')
    expect(relay.counts.unauthorized).toBeGreaterThanOrEqual(4)
    expect(refused).toHaveLength(relay.counts.unauthorized)
  })

  it('F193: a token is believed the name of its node, and no certificate beside it', async () => {
    const extra = { 'authentication.kubernetes.io/node-name': ['n1'] }
    api.answer('tokenreviews', asked => review(asked, { user: { username: USER, extra } }))
    const [forger, another] = [createAuthority('another'), authority]
    for (const [authority, organizations] of [
      [forger, ['system:nodes']],
      [another, ['system:masters']],
    ] as const) {
      const { certPem: cert, keyPem: key } = authority.issue({ commonName: 'system:node:n2', organizations })
      expect(await answer({ cert, key }, 'good', 'n2')).toBe(KNOWN)
      expect(await answer({ cert, key }, 'good', 'n1')).toBe(KNOWN)
    }
    expect([...state.reports.nodes()].map(({ name }) => name)).toEqual(['n1'])
    expect(state.reports.refused.get('other-node')).toBe(2)
  })

  it.each([
    ['kprobe-relay', ['n1', 'n2']],
    [USER, ['n3']],
    ['system:nodes', []],
  ])('F208: with %s trusted, takes reports for other nodes from it alone', async (user, taken) => {
    relay = await start(write('ca', authority.caPem), [user])
    const { certPem: cert, keyPem: key } = authority.issue({
      commonName: 'kprobe-relay',
      organizations: ['system:nodes'],
    })
    expect(await answer({ cert, key }, undefined, 'n1')).toBe(KNOWN)
    expect(await answer({ cert, key }, undefined, 'n2')).toBe(KNOWN)
    expect(await answer({}, 'good', 'n3')).toBe(KNOWN)
    expect([...state.reports.nodes()].map(({ name }) => name)).toEqual(taken)
    expect(state.reports.refused.get('other-node')).toBe(3 - taken.length)
  })

  it('F201: asks for no certificate without an authority of clients', async () => {
    relay = await start('')
    const node = authority.issue({ organizations: ['system:nodes'] })
    expect(await answer({ cert: node.certPem, key: node.keyPem })).toContain('16 ')
    expect(await answer({}, 'good')).toBe(KNOWN)
  })

  it('F201: is believed by its name alone', async () => {
    expect(await answer({ servername: 'other.test' }, 'good')).toMatch(/^14 .*altnames/)
    // Its certificate does not have the address.
    expect(await answer({ servername: undefined }, 'good')).toMatch(/^14 .*altnames/)
  })

  it('F204: a client that is not admitted yet sends no more than a window, and the rest once it is', async () => {
    api.answer('tokenreviews', undefined)
    const link = linkOf({}, 'good')
    let ended = ''
    const handlers = {
      message: () => undefined,
      ended: (code: number, text: string) => {
        ended = `${code} ${text}`
      },
    }
    const call = link.call(DELTA_METHOD, handlers)
    const names = Array.from({ length: 1_000 }, (_, index) => `${index}`.padEnd(900, '.'))
    call.send(framedRequest({ type_url: 'unknown', resource_names_subscribe: names }))
    await eventually(() => api.waiting('tokenreviews') === 1)
    await new Promise(resolve => setTimeout(resolve, 50))
    expect([call.isFull, ended]).toEqual([true, ''])
    review(api.take('tokenreviews'))
    await eventually(() => ended !== '')
    expect(ended).toBe(KNOWN)
  })

  it('gives a node its token from a file that rotates', async () => {
    const tokenFile = write('token', 'bad\n')
    const kubeconfig = write(
      'kubeconfig',
      '{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}], contexts: [{name: a, context: {cluster: a}}], current-context: a}',
    )
    const flags = [
      `--kubeconfig=${kubeconfig}`,
      `--source=relay:${relay.address}`,
      `--relay-tls-ca=${write('relay-ca', authority.caPem)}`,
      '--relay-tls-server-name=relay.test',
      `--relay-token-file=${tokenFile}`,
    ]
    const clock = new FakeClock()
    const client = await openClient(configFrom(flags), {
      clock,
      env: {},
      warn: () => undefined,
      parts: OPTIONAL_PARTS,
    })
    ends.push(() => client.close())
    const ask = () =>
      client.send({
        method: 'GET',
        path: RELAYED.Service.path,
        accept: '',
        idleMs: 30_000,
        longLived: false,
        signal: new AbortController().signal,
      })
    /** A request that is lost with its connection ends by a limit of the clock, which the next one moves. */
    const outcome = (): Promise<string> =>
      Promise.race([
        ask().then(String, String),
        new Promise<string>(resolve => setTimeout(resolve, LOST_MS, 'lost').unref()),
      ])
    // The connection of a token that was rejected may end only at the next request.
    const until = (text: string) =>
      eventually(async () => {
        await clock.advance(REST_MS)
        return (await outcome()).includes(text)
      }, text)
    await until('the API server does not accept the token')
    write('token', 'two words')
    await until('--relay-token-file: there is no token in')
    write('token', 'good')
    // It is let in: the relay has no state yet.
    await until('the relay has not read its source yet')
  })

  it('cleans up', () => rmSync(folder, { recursive: true, force: true }))
})
