import { execFileSync } from 'node:child_process'
import { closeSync, openSync, writeFileSync, writeSync } from 'node:fs'
import { connect, createServer, type Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import type { Daemon } from '../support/daemon.ts'
import { eventually } from '../support/patience.ts'
import { answers, ask, Cluster, HEALTH_PORT, METRICS_PORT } from './cluster.ts'
import { descriptorsOf, starved } from './cluster-process.ts'
import { Removals } from './cluster-removals.ts'
import { frontendNames, generation, listRuleset } from './kernel.ts'
import { nameOf, service, services } from './objects.ts'

const cluster = Cluster.ofEachTest()

beforeEach(() => cluster.open({ objects: services(10) }))

/** Something changes, and the kernel follows. */
async function keepsUp(number = 40): Promise<void> {
  cluster.put(...service(number), ...service(2, { endpoints: [`10.9.0.${number}:8080`] }))
  await cluster.converged()
}

/** Connections to a port that say this and then nothing. */
async function crowd(count: number, port: number, words: string): Promise<readonly Socket[]> {
  const sockets = Array.from({ length: count }, () => connect(port, '127.0.0.1'))
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy()
  })
  for (const socket of sockets) {
    socket.on('error', () => undefined)
    socket.on('connect', () => socket.write(words))
  }
  await pause(500)
  return sockets
}

describe('memory and descriptors', () => {
  it('F90: a heap that is too small ends the daemon, the kernel keeps its state, and the next start converges', async () => {
    await cluster.programmedBefore()
    const before = listRuleset()
    for (let number = 100; number < 1_600; number++)
      cluster.put(
        ...service(number, {
          endpoints: Array.from({ length: 20 }, (_, i) => `10.7.${number % 250}.${i + 1}:80`),
        }),
      )
    const daemon = cluster.daemon({ nodeArgs: ['--max-old-space-size=12'] })
    const { code, signal } = await daemon.ended()
    expect(code === 0 && signal === null).toBe(false)
    expect(daemon.strayLines.join('\n')).toContain('heap')
    expect(listRuleset()).toBe(before)
    await cluster.running()
    await cluster.converged()
  })

  it('F91: without descriptors the servers say so and rules are kept up; with some, they answer again', async () => {
    const daemon = await cluster.running({ wrapper: ['prlimit', '--nofile=64:64'] })
    const sockets = [
      ...(await crowd(60, HEALTH_PORT, 'GET /healthz HTTP/1.1\r\n')),
      ...(await crowd(60, METRICS_PORT, 'GET /metrics HTTP/1.1\r\n')),
    ]
    expect(descriptorsOf(daemon.pid)).toBeLessThanOrEqual(65)
    await keepsUp(40)
    // The connection to the API server has gone, and another needs a descriptor.
    cluster.server.cut()
    await pause(1_000)
    for (const socket of sockets) socket.destroy()
    await keepsUp(41)
    expect(await ask('/healthz')).toMatchObject({ code: 200 })
    expect(daemon.hasExited).toBe(false)
    await daemon.caughtUp()
    expect(daemon.strayLines).toEqual([])
  })
})

describe('time', () => {
  it('F92: with a twentieth of a processor no connection is given up, and everything is applied in the end', async () => {
    const daemon = await cluster.running()
    const accepted = cluster.server.accepted
    const feed = starved(daemon, 25, 475)
    for (let round = 0; round < 10; round++) {
      cluster.put(...service(5, { endpoints: [`10.9.3.${round + 1}:8080`] }), ...service(50 + round))
      await pause(500)
    }
    await feed()
    await cluster.converged()
    expect(listRuleset()).toContain('10.9.3.10 ')
    expect(cluster.server.accepted).toBe(accepted)
    expect(await ask('/livez')).toMatchObject({ code: 200 })
  })

  it.each([
    ['the history is there', false],
    ['the history is gone', true],
  ])('F82: a daemon that was stopped for a while is up to date soon after, when %s', async (_, compacted) => {
    const daemon = await cluster.running()
    const removals = await Removals.begin()
    daemon.kill('SIGSTOP')
    for (let number = 0; number < 5; number++)
      cluster.put(...service(number, { endpoints: [`10.9.4.${number + 1}:8080`] }))
    cluster.remove(...service(8))
    cluster.put(...service(60))
    if (compacted) {
      cluster.server.cut()
      cluster.server.store.compact()
    }
    await pause(4_000)
    expect(removals.lines).toEqual([])
    daemon.kill('SIGCONT')
    await cluster.converged()
    expect(frontendNames()).not.toContain(nameOf(8))
  })
})

describe('what is written to', () => {
  /** More lines than a pipe holds: 64 KiB. */
  async function many(): Promise<void> {
    for (let round = 0; round < 60; round++) {
      cluster.put(...service(5, { endpoints: [`10.9.6.${round + 1}:8080`] }), ...service(100 + round))
      await pause(20)
    }
  }

  it('F93: a log that nobody reads does not hold up a sync', async () => {
    const pipe = cluster.file('log')
    execFileSync('mkfifo', [pipe])
    const end = openSync(pipe, 'r+')
    onTestFinished(() => closeSync(end))
    // More than a pipe holds, so that nothing more can be written.
    writeSync(end, 'x'.repeat(64 * 1024 - 4096))
    const daemon = cluster.daemon({ errFd: end, args: ['-v=5'] })
    // Its log cannot be read here: the kernel shows the first sync.
    await cluster.converged()
    await many()
    await cluster.converged()
    expect(await ask('/livez')).toMatchObject({ code: 200 })
    expect((await daemon.stop()).code).toBe(0)
  })

  it('F93: pipes that nobody holds any more end nothing', async () => {
    const daemon = await cluster.running({ args: ['-v=5'] })
    daemon.hangUp()
    await many()
    await cluster.converged()
    expect(await ask('/healthz')).toMatchObject({ code: 200 })
    expect(daemon.hasExited).toBe(false)
  })

  it('F93: a full disk under the log, and no folder for temporary files, disturb nothing', async () => {
    const full = openSync('/dev/full', 'w')
    cluster.daemon({ errFd: full, env: { TMPDIR: '/nonexistent' } })
    closeSync(full)
    await cluster.converged()
    await many()
    await cluster.converged()
    expect(await ask('/healthz')).toMatchObject({ code: 200 })
  })
})

describe('errors of our own', () => {
  /** Node code that runs in the daemon before it, and again whenever it gets SIGUSR2. */
  async function withHook(code: string): Promise<Daemon> {
    const hook = cluster.file('hook.cjs')
    writeFileSync(hook, code)
    return await cluster.running({ nodeArgs: [`--require=${hook}`] })
  }

  it.each([
    ['a rejection', "Promise.reject(new Error('injected'))"],
    ['an exception', "setImmediate(() => { throw new Error('injected') })"],
  ])(
    'F95: %s that nobody handles ends the daemon with a trace, and the next one goes on',
    async (_, fault) => {
      const daemon = await withHook(`process.on('SIGUSR2', () => { ${fault} })`)
      const before = await generation()
      daemon.kill('SIGUSR2')
      expect((await daemon.ended()).code).not.toBe(0)
      expect(daemon.strayLines.join('\n')).toContain('injected')
      expect(await generation()).toBe(before)
      await cluster.running()
      await keepsUp()
    },
  )

  it('F95: an object over which the daemon trips is told of and tried again; nothing that was there goes', async () => {
    const trip = `const real = RegExp.prototype.test
      RegExp.prototype.test = function (text) {
        if (text === 'trip') throw new Error('injected')
        return real.call(this, text)
      }`
    const daemon = await withHook(trip)
    const removals = await Removals.begin()
    const [poison] = service(70)
    cluster.put({ ...poison, metadata: { name: 'trip', namespace: 'ns' } })
    await daemon.until(() => daemon.records.some(({ reason }) => String(reason).includes('injected')))
    expect(removals.lines).toEqual([])
    cluster.put(...service(2, { endpoints: ['10.9.8.8:8080'] }))
    await eventually(() => listRuleset().includes('10.9.8.8'))
    cluster.remove({ ...poison, metadata: { name: 'trip', namespace: 'ns' } })
    await cluster.converged()
  })
})

describe('ports of the servers', () => {
  it('F99: ports that are taken are told of and tried again, and rules do not wait for them', async () => {
    const busy = [HEALTH_PORT, METRICS_PORT, 32_000].map(port => {
      const server = createServer()
      server.listen(port)
      return server
    })
    const leave = () => Promise.all(busy.map(server => new Promise(resolve => server.close(resolve))))
    execFileSync('ip', ['addr', 'add', '192.168.0.2/32', 'dev', 'lo'])
    const daemon = await cluster.running()
    await daemon.logged('cannot listen', 2)
    const [object, slice] = service(30)
    const local = { type: 'LoadBalancer', externalTrafficPolicy: 'Local', healthCheckNodePort: 32_000 }
    cluster.put({ ...object, spec: { ...Object(object).spec, ...local } }, slice ?? {})
    const [check] = await daemon.logged('health check node port: cannot listen')
    expect(check?.msg).toBe(
      'health check node port: cannot listen on 192.168.0.2:32000 (in use); retrying every 5 s',
    )
    const posted = () => cluster.server.store.list('events').map(({ reason }) => reason)
    await eventually(() => posted().includes('FailedToStartServiceHealthcheck'))
    await keepsUp()
    await leave()
    await eventually(() => answers(200, '/healthz'))
    await eventually(() => answers(503, '/', 32_000, '192.168.0.2'))
    expect(daemon.hasExited).toBe(false)
  })
})
