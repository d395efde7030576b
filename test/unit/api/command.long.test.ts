import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { command } from '../../../src/api/command.ts'
import { grpcClient, WatchClient } from '../../support/api/watch-client.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { eventually } from '../../support/patience.ts'
import { isRunning } from '../../support/processes.ts'
import { endpoint, service, slice } from '../model/objects.ts'
import { ask, freePort } from '../telemetry/http-client.ts'

let folder: string
let stop: AbortController
let lost: AbortController
let out: string
let io: FakeIo
/** What standard output does with a text. */
let take: (text: string) => void

beforeEach(() => {
  folder = temporaryFolder()
  stop = new AbortController()
  lost = new AbortController()
  out = ''
  take = text => {
    out += text
  }
  describeService('10.1.0.1')
})

afterEach(() => {
  stop.abort()
})

/** A Service with one endpoint, as files. */
function describeService(address: string): void {
  const objects = [
    service('web', {}, { metadata: { labels: { app: 'web' } } }),
    slice('s', 'web', [endpoint(address, { hostname: 'web-0' })]),
  ]
  writeFileSync(
    join(folder, 'objects.json'),
    JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects }),
  )
}

function api(...argv: string[]): Promise<number> {
  const given = new FakeIo({ signal: stop.signal, outLost: lost.signal })
  io = Object.assign(given, { out: (text: string) => take(text) })
  return command.run([`--source=file:${join(folder, 'objects.json')}`, ...argv], io)
}

const lines = () => out.split('\n').filter(line => line !== '')
const read = (name: string) => {
  try {
    return readFileSync(join(folder, name), 'utf8')
  } catch {
    return ''
  }
}

describe('kprobe api', () => {
  it('prints every state, or what changes, until it is told to stop', async () => {
    const watching = api('--print', '--watch')
    await eventually(() => lines().length === 1, 'the first state')
    describeService('10.1.0.2')
    await eventually(() => lines().length === 2, 'the second')
    stop.abort()
    expect(await watching).toBe(0)
    expect(lines()[1]).toContain('10.1.0.2')
    expect(out.endsWith('\n\n')).toBe(true)

    stop = new AbortController()
    out = ''
    const following = api('--print', '--diff')
    await eventually(() => lines().length === 3, 'the first Sync')
    describeService('10.1.0.3')
    await eventually(() => lines().length === 6, 'the second')
    stop.abort()
    expect(await following).toBe(0)
    expect(
      lines()
        .slice(3)
        .map(line => Object.keys(JSON.parse(line))[0]),
    ).toEqual(['Set', 'Delete', 'Sync'])
  })

  it('ends when nobody reads what it prints any more', async () => {
    const watching = api('--print', '--watch')
    await eventually(() => lines().length === 1, 'the first state')
    lost.abort()
    expect(await watching).toBe(0)
  })

  it('gives a line with blanks to the shell, which has arguments of its own', async () => {
    const script = join(folder, 'script')
    writeFileSync(script, `#!/bin/sh\necho "$@" > ${folder}/args\n`, { mode: 0o755 })
    const line = `cat -n > ${folder}/numbered; echo "a b" $# >> ${folder}/numbered`
    expect(await api(`--exec=${line}`, `--exec=${script}`, '--once', '--', 'x', 'y')).toBe(0)
    const numbered = read('numbered')
    expect(numbered).toMatch(/^ *1\t\{"Service":.*\na b 0\n$/)
    expect(read('args')).toBe('x y\n')
  })

  it('serves metrics where it is told to, which say how old the state is', async () => {
    const port = await freePort()
    const watching = api('--print', '--watch', `--metrics-bind-address=127.0.0.1:${port}`)
    await eventually(() => lines().length === 1, 'the first state')
    let body = ''
    await eventually(async () => {
      body = await ask({ port, path: '/metrics' }).then(
        answer => answer.body,
        () => '',
      )
      return body.includes('kprobe_api_services 1')
    })
    expect(body).toMatch(/^kprobe_api_services 1$/m)
    expect(body).toMatch(/^kprobe_api_state_age_seconds [\d.e-]+$/m)
    stop.abort()
    expect(await watching).toBe(0)
  })

  it('ends as a whole, its programs with it, when one part of it fails', async () => {
    let pid = ''
    take = () => {
      pid = read('pid').trim()
      if (pid !== '') throw new Error('out of paper')
    }
    const running = api('--print', '--watch', `--exec=echo $$ > ${join(folder, 'pid')}; exec sleep 60`)
    await eventually(() => read('pid') !== '', 'the program')
    describeService('10.1.0.2')
    expect(await running).toBe(1)
    expect(io.stderr).toBe('kprobe api: out of paper\n')
    expect(isRunning(pid)).toBe(false)
  })

  it('fails when it was to print one state, and is told to stop before there was one', async () => {
    const silent = createServer(socket => socket.on('error', () => undefined))
    await new Promise<void>(done => silent.listen({ host: '127.0.0.1', port: 0 }, done))
    const address = silent.address()
    const port = typeof address === 'object' && address !== null ? address.port : 0
    const connected = new Promise(done => silent.once('connection', done))
    const printing = api('--source=kube', `--master=http://127.0.0.1:${port}`, '--print')
    await connected
    stop.abort()
    expect(await printing).toBe(1)
    expect(out).toBe('')
    silent.close()
  })

  it('serves gRPC, and ends with its socket', async () => {
    const address = `unix://${join(folder, 'api.sock')}`
    const serving = api(`--listen=${address}`)
    await eventually(() => existsSync(join(folder, 'api.sock')), 'the socket')
    const client = grpcClient(address)
    const watch = new WatchClient(client)
    await watch.ask('here')
    expect([...watch.store.services.keys()]).toEqual(['ns/web'])
    expect([...watch.store.endpoints.keys()]).toEqual(['ns/web/10.1.0.1,=8080'])
    const answered = watch.ask('here')
    describeService('10.1.0.2')
    await answered
    expect([...watch.store.endpoints.keys()]).toEqual(['ns/web/10.1.0.2,=8080'])
    expect(watch.store.complaints).toEqual([])
    stop.abort()
    expect(await serving).toBe(0)
    client.close()
    expect(existsSync(join(folder, 'api.sock'))).toBe(false)
  })

  it('serves the last state while its source cannot be read', async () => {
    const address = `unix://${join(folder, 'api.sock')}`
    const serving = api(`--listen=${address}`, '--print', '--watch')
    await eventually(() => lines().length === 1, 'the first state')
    writeFileSync(join(folder, 'objects.json'), '{')
    await new Promise(done => setTimeout(done, 300))
    const client = grpcClient(address)
    const watch = new WatchClient(client)
    await watch.ask()
    expect([...watch.store.services.keys()]).toEqual(['ns/web'])
    expect(lines()).toHaveLength(1)
    client.close()
    stop.abort()
    await serving
  })

  it('fails where there is nothing to tell, or nobody can be told', async () => {
    rmSync(join(folder, 'objects.json'))
    expect(await api('--print')).toBe(1)
    expect(io.stderr).toContain('objects.json')
    describeService('10.1.0.1')
    expect(await api('--listen=unix:///nowhere/at/all/api.sock')).toBe(1)
    expect(io.stderr).toMatch(/^kprobe api: --listen: .*unix:\/\/\/nowhere\/at\/all\/api.sock/)
    expect(await api('--listen=tcp://0.0.0.0:0')).toBe(1)
    expect(io.stderr).toContain('--api-tls-cert')
    const files = ['cert', 'key', 'client-ca'].map(name => `--api-tls-${name}=${join(folder, name)}`)
    expect(await api('--listen=tcp://127.0.0.1:0', ...files)).toBe(1)
    expect(io.stderr).toMatch(/^kprobe api: --api-tls-cert: .*ENOENT/)
    expect(out).toBe('')
  })

  it.each([
    [['--watch'], '--watch: is for --print'],
    [['--diff'], '--diff: is for --print'],
    [['--print', '--watch', '--diff'], '--diff: cannot be combined with --watch'],
    [['--once'], '--once: is for --exec'],
    [['--once', '--print'], '--once: is for --exec'],
    [['--once', '--exec=sh', '--listen=unix:///x'], '--once: cannot be combined with --listen'],
    [['--once', '--exec=sh', '--print', '--watch'], '--once: cannot be combined with --watch'],
    [['--once', '--exec=sh', '--print', '--diff'], '--once: cannot be combined with --diff'],
    [['--api=unix:///x'], '--api: is for `kprobe run`'],
    [['--exec=nothing-of-this-name'], '--exec: "nothing-of-this-name": no such program'],
    [['--exec=/nowhere/at all'], '--exec: "/nowhere/at all": /nowhere/at: no such program'],
    [['--exec=cat -n', '--', 'x'], '--: arguments are for programs'],
    [['--exec='], '--exec: "" names no program'],
    [['--exec=a\0b'], '--exec: '],
    [['--exec=a', '--exec-timeout=soon'], '--exec-timeout: "soon" is not a duration'],
    [['--exec=a', '--exec-timeout=-1s'], '--exec-timeout: "-1s" is not a duration'],
    [['--exec=a', '--exec-timeout=600h'], '--exec-timeout: "600h" is not a duration'],
    [['--exec-timeout=1s'], '--exec-timeout: is for --exec'],
    [['--print', '--', 'x'], '--: arguments are for the programs of --exec'],
    [['--exec=a', '--', 'x\0y'], '--: an argument has a zero byte in it'],
    [['--listen=nowhere'], '--listen: '],
    [['--listen=tcp://127.0.0.1'], '--listen: '],
    [['--print', '--api-tls-cert=a', '--api-tls-key=b', '--api-tls-client-ca=c'], 'is for a server'],
    [['--listen=tcp://0.0.0.0:1', '--api-tls-cert=a'], '--api-tls-key: is missing'],
    [['surplus'], '"surplus": no such argument'],
    [['--nonsense'], '--nonsense: no such flag'],
    [['--source=filee:/x'], 'nor relay:ADDRESS; did you mean file:/x?\n'],
    [['--source=http://x'], 'nor relay:ADDRESS\n'],
  ])('refuses %j', async (argv, message) => {
    expect(await api(...argv)).toBe(2)
    expect(io.stderr).toContain(message)
    expect(io.stderr).toContain('see `kprobe api --help`')
    expect(out).toBe('')
  })

  it('reports all errors in one round, also those of a configuration that is wrong elsewhere', async () => {
    expect(await api('--listen=nowhere', '--exec=no-such-program', '--source=x', '--diff', '--once')).toBe(2)
    for (const message of [
      '--source: "x" is neither kube nor file:PATH nor relay:ADDRESS; did you mean file:x?',
      '--listen: ',
      '--exec: "no-such-program": no such program',
      '--diff: is for --print',
      '--once: cannot be combined with --listen',
    ])
      expect(io.stderr).toContain(message)
  })
})
