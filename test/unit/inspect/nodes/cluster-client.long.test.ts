import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { command } from '../../../../src/inspect/nodes/nodes.ts'
import { type ExecAnswer, ExecServer, frame } from '../../../support/exec-server.ts'
import { FakeIo } from '../../../support/fake-io.ts'
import { temporaryFolder } from '../../../support/folder.ts'

const SECRET = 'secret-that-nobody-may-print'
let folder: string
let server: ExecServer

async function serve(answer: ExecAnswer, nodes: readonly string[] = ['a']): Promise<void> {
  server = await ExecServer.start({
    pods: nodes.map(node => ({
      metadata: { name: `kprobe-${node}` },
      spec: { nodeName: node },
      status: { conditions: [{ type: 'Ready', status: 'True' }] },
    })),
    answer: ({ pod }) => (pod.startsWith('kprobe-gone') ? { isCut: true } : answer),
  })
}

beforeEach(async () => {
  folder = temporaryFolder()
})
afterEach(async () => {
  vi.unstubAllEnvs()
  vi.unstubAllGlobals()
  await server.close()
})

function written(name: string, value: unknown): string {
  const path = join(folder, name)
  mkdirSync(join(path, '..'), { recursive: true })
  writeFileSync(path, typeof value === 'string' ? value : JSON.stringify(value), { mode: 0o700 })
  return path
}

const context = (name: string, cluster = 'it', user = 'me') => ({
  contexts: [{ name, context: { cluster, user } }],
})
const clusters = (proxy = {}) => ({ clusters: [{ name: 'it', cluster: { server: server.url, ...proxy } }] })
const users = (user: object) => ({ users: [{ name: 'me', user }] })
const whole = (user: object) => ({
  ...clusters(),
  ...users(user),
  ...context('all'),
  'current-context': 'all',
})

async function run(files: readonly string[], ...flags: readonly string[]) {
  vi.stubEnv('KUBECONFIG', files.join(':'))
  const io = new FakeIo()
  const code = await command.run(['status', ...flags], io)
  expect(io.stdout + io.stderr).not.toContain(SECRET)
  return { code, out: io.stdout, err: io.stderr }
}

const ANSWER = { stdout: '{"sentence":"well"}' }
const others = () => ({ ...users({ token: 'other' }), ...clusters({ 'proxy-url': 'http://192.0.2.1:1' }) })

describe('kubeconfigs', () => {
  beforeEach(() => serve(ANSWER))

  it('are merged as kubectl merges them: the first file that has an entry decides', async () => {
    const files = [
      written('one', { ...context('first'), 'current-context': 'first', ...clusters() }),
      written('two', { ...others(), ...context('second', 'none'), 'current-context': 'second' }),
      written('three', users({ token: SECRET })),
    ]
    expect(await run(files)).toMatchObject({ code: 0, err: '' })
    expect(server.tokens).toEqual(new Set(['Bearer other']))
    const ended = await run(files, '--context=second')
    expect([ended.code, ended.err]).toEqual([2, expect.stringContaining('there is no cluster of that name')])
    expect((await run(files, `--kubeconfig=${files[2]}`)).err).toContain('it names no current-context')
  })

  it('of several, those that are missing are skipped, those that are unreadable by name', async () => {
    const good = written('good', whole({ token: SECRET }))
    mkdirSync(join(folder, 'folder'))
    const ended = await run([join(folder, 'missing'), join(folder, 'folder'), written('empty', ''), good])
    expect(ended).toMatchObject({
      code: 0,
      err: `kprobe nodes: cannot read kubeconfig ${folder}/folder: EISDIR; it is skipped\n`,
    })
    const none = await run([join(folder, 'missing'), join(folder, 'other')])
    expect(none).toMatchObject({
      code: 2,
      err: `kprobe nodes: cannot read kubeconfig ${folder}/missing: ENOENT\n`,
    })
  })

  it('that are broken are named, and no line of them is repeated', async () => {
    const broken = written('broken', `users:\n- name: me\n  user: {token: ${SECRET}\n`)
    const { code, err } = await run([written('good', whole({})), broken])
    expect([code, err]).toEqual([2, expect.stringMatching(/broken: not YAML at line \d+, column \d+\n$/)])
  })

  it('have paths that begin at their own file: tokenFile, which the package does not read', async () => {
    written('deep/token', SECRET)
    const files = [
      written('one', { ...whole({}), users: [] }),
      written('deep/two', users({ tokenFile: 'token' })),
    ]
    expect((await run(files)).code).toBe(0)
    expect(server.tokens).toEqual(new Set([`Bearer ${SECRET}`]))
  })

  it('and flags name the identity: uid and each group, which the package does not send', async () => {
    const file = written('it', whole({ as: 'ann', 'as-uid': 'u-1', 'as-groups': ['one', 'two'] }))
    await run([file])
    const groups = 'impersonate-group=one impersonate-group=two'
    expect([...server.identities]).toEqual([`impersonate-user=ann impersonate-uid=u-1 ${groups}`])
    server.identities.clear()
    await run([file], '--as=bob', '--as-group=three,four', '--as-uid=u-2')
    const others = 'impersonate-group=three impersonate-group=four'
    expect([...server.identities]).toEqual([`impersonate-user=bob impersonate-uid=u-2 ${others}`])
    const plain = await run([written('plain', whole({}))], '--as-group=x')
    expect(plain).toMatchObject({
      code: 2,
      err: 'kprobe nodes: --as-group and --as-uid need a user: give --as\n',
    })
  })

  it('run a plugin beside them, of which too much output is an error', async () => {
    const exec = {
      apiVersion: 'client.authentication.k8s.io/v1',
      command: './plugin',
      interactiveMode: 'Never',
    }
    written('bin/plugin', `#!/bin/sh\necho '{"status":{"token":"${SECRET}"}}'\n`)
    const files = [written('one', { ...whole({}), users: [] }), written('bin/two', users({ exec }))]
    expect((await run(files)).code).toBe(0)
    expect(server.tokens).toEqual(new Set([`Bearer ${SECRET}`]))
    written('bin/plugin', `#!/bin/sh\nwhile :; do echo ${SECRET}; done\n`)
    expect(await run(files)).toMatchObject({
      code: 2,
      err: expect.stringContaining('printed more than 1.0 MiB'),
    })
  })

  it('with a proxy of another kind are refused without its password', async () => {
    const file = written('it', { ...whole({}), ...clusters({ 'proxy-url': `ftp://me:${SECRET}@192.0.2.1` }) })
    expect(await run([file])).toMatchObject({ code: 2, err: expect.stringContaining('unknown scheme ftp:') })
  })
})

describe('an OIDC token', () => {
  beforeEach(() => serve(ANSWER, ['a', 'b', 'c']))

  const ISSUER = 'https://issuer.example'
  const part = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url')
  const jwt = (exp: number) =>
    `${part({ alg: 'RS256' })}.${part({ exp, iat: 1, iss: ISSUER, aud: 'kprobe', sub: 'ann' })}.${part({ SECRET })}`
  const EXPIRED = jwt(1_000)
  const GOOD = jwt(99_999_999_999)
  const user = (config: object) => [written('it', whole({ 'auth-provider': { name: 'oidc', config } }))]
  const renewing = { 'client-id': 'kprobe', 'idp-issuer-url': ISSUER, 'refresh-token': SECRET }

  /** An issuer that answers requests for a token with this. Gives the requests that it gets. */
  function issuer(status: number, answer: object): readonly string[] {
    const asked: string[] = []
    const found = { issuer: ISSUER, token_endpoint: `${ISSUER}/token`, jwks_uri: `${ISSUER}/keys` }
    vi.stubGlobal('fetch', async (url: URL | string) => {
      const isToken = String(url) === found.token_endpoint
      if (isToken) asked.push(String(url))
      return Response.json(isToken ? answer : found, { status: isToken ? status : 200 })
    })
    return asked
  }

  it('is sent while it lasts', async () => {
    expect((await run(user({ 'id-token': GOOD }))).code).toBe(0)
    expect(server.tokens).toEqual(new Set([`Bearer ${GOOD}`]))
  })

  it('that is expired is renewed once for all nodes', async () => {
    const asked = issuer(200, { id_token: GOOD, access_token: SECRET, token_type: 'bearer', expires_in: 60 })
    expect((await run(user({ 'id-token': EXPIRED, ...renewing }))).err).toBe('')
    expect([server.tokens, asked.length]).toEqual([new Set([`Bearer ${GOOD}`]), 1])
  })

  it('that is expired and cannot be renewed is an error without a token', async () => {
    issuer(400, { error: 'invalid_grant', error_description: SECRET })
    expect(await run(user({ 'id-token': EXPIRED, ...renewing }))).toMatchObject({
      code: 2,
      err: expect.stringMatching(/: the OIDC token cannot be renewed: invalid_grant\n$/),
    })
    expect(await run(user({ 'id-token': EXPIRED }))).toMatchObject({
      code: 2,
      err: expect.stringMatching(/auth-provider oidc has an id-token that is expired, .*; log in again\n$/),
    })
  })
})

const [STDOUT, ERROR, OTHER] = [1, 3, 7]
const message = (channel: number, text: string) =>
  frame(2, Buffer.concat([Buffer.from([channel]), Buffer.from(text)]))
const raw = (...frames: readonly Buffer[]) => ({ raw: Buffer.concat(frames) })

describe('a command', () => {
  it.each<[string, ExecAnswer, string]>([
    [
      'output without end',
      { stdout: Buffer.alloc(17 * 1024 * 1024) },
      'the command prints more than 16777216 bytes',
    ],
    ['a mask', raw(Buffer.from([0x82, 0x81, 0, 0, 0, 0, 1])), 'Invalid WebSocket frame: MASK must be clear'],
    [
      'an end without a status',
      raw(frame(8, Buffer.alloc(0))),
      'the server ended the command without its status',
    ],
    ['a status that is none', raw(message(ERROR, 'no')), 'the server breaks the protocol'],
    ['an unknown channel', raw(message(OTHER, 'x')), 'the server breaks the protocol: Unknown stream: 7'],
    ['an empty message', raw(frame(2, Buffer.alloc(0))), 'the server breaks the protocol'],
    ['a pod that goes', { isCut: true }, 'the connection ended before the command did'],
  ])('with %s fails for its node alone', async (_, answer, expected) => {
    await serve(answer)
    const { code, out } = await run([written('it', whole({}))])
    expect([code, out]).toEqual([1, expect.stringContaining(expected)])
  })

  it('whose messages come in fragments is read', async () => {
    const begun = message(STDOUT, '{"sentence":')
    begun[0] = 2
    await serve(
      raw(
        begun,
        frame(9, Buffer.from('ping')),
        frame(0, Buffer.from('"1.2.3"}')),
        message(ERROR, '{"status":"Success"}'),
      ),
    )
    expect(await run([written('it', whole({}))])).toMatchObject({ code: 0 })
  })

  it('ends for 500 nodes, of which 50 do not answer', async () => {
    const nodes = Array.from({ length: 500 }, (_, at) => `${at % 10 === 0 ? 'gone-' : ''}${at}`)
    await serve(ANSWER, nodes)
    const { code, out } = await run([written('it', whole({}))], '--concurrency=100')
    expect([code, out.trimEnd().split('\n').at(-1)]).toEqual([
      1,
      '500 nodes: 450 ok, 0 differ, 50 did not answer',
    ])
  })
})
