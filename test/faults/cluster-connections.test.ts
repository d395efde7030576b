import { writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import type { Fault } from '../support/apiserver/faults.ts'
import { ApiServer, type ApiServerOptions } from '../support/apiserver/http-server.ts'
import { ip } from '../support/lab/topology.ts'
import { eventually } from '../support/patience.ts'
import { createAuthority } from '../support/tls.ts'
import { ask, Cluster } from './cluster.ts'
import { descriptorsOf } from './cluster-process.ts'
import { Removals } from './cluster-removals.ts'
import { frontendNames, listRuleset } from './kernel.ts'
import { clusterIp, nameOf, service, services } from './objects.ts'

const cluster = Cluster.ofEachTest()

const open = (server: ApiServerOptions = {}): Promise<void> => cluster.open({ server, objects: services(12) })

describe('a server that ends everything at once', () => {
  beforeEach(() => open())

  const WAITED_MS = 4_000
  /** Back-off delays are 0.8 s, 1.6 s, 3.2 s ... of each of four watches, of which the shortest sum counts. */
  const ATTEMPTS_MAX = 4 * 4

  it('F26: connections that are closed as soon as they are made come at the pace of the back-off', async () => {
    const daemon = await cluster.running()
    const [before, descriptors] = [listRuleset(), descriptorsOf(daemon.pid)]
    const { port } = cluster.server
    await cluster.server.refuse()
    let accepted = 0
    const closing = createServer(socket => {
      accepted++
      socket.destroy()
    })
    await new Promise<void>(resolve => closing.listen(port, '127.0.0.1', resolve))
    await pause(WAITED_MS)
    expect(accepted).toBeGreaterThan(0)
    expect(accepted).toBeLessThanOrEqual(ATTEMPTS_MAX)
    expect(descriptorsOf(daemon.pid)).toBeLessThanOrEqual(descriptors + 2)
    expect(listRuleset()).toBe(before)
    await new Promise(resolve => closing.close(resolve))
    cluster.put(...service(20))
    await cluster.server.listen()
    await cluster.converged()
  })

  it('F26: watches that end as soon as they begin come at the pace of the back-off, over one connection', async () => {
    const daemon = await cluster.running()
    const [before, descriptors] = [listRuleset(), descriptorsOf(daemon.pid)]
    const faults: readonly Fault[] = [{ kind: 'ending', ending: 'end', at: { events: 0 } }]
    const lift = cluster.server.faults.add({ verb: 'watch', faults })
    const requests = cluster.server.log.length
    cluster.server.cut()
    await pause(WAITED_MS)
    const watches = cluster.asked(requests).filter(asked => asked.startsWith('watch'))
    expect(watches.length).toBeGreaterThan(0)
    expect(watches.length).toBeLessThanOrEqual(ATTEMPTS_MAX + 4)
    expect(cluster.server.connectionCount).toBe(1)
    expect(descriptorsOf(daemon.pid)).toBeLessThanOrEqual(descriptors + 2)
    await daemon.logged('watches end as soon as they begin')
    await daemon.caughtUp()
    expect(daemon.said('watches end as soon as they begin')).toHaveLength(1)
    expect(listRuleset()).toBe(before)
    lift()
    cluster.put(...service(20))
    await cluster.converged()
  })
})

describe('HTTP/2', () => {
  it.each<readonly [string, Fault]>([
    ['GOAWAY in the middle of events', { kind: 'goaway', at: { events: 2 } }],
    [
      'a connection that is reset in the middle of events',
      { kind: 'ending', ending: 'reset', at: { events: 2 } },
    ],
  ])('F27: %s loses no event', async (_, fault) => {
    await open()
    const daemon = await cluster.running()
    const removals = await Removals.begin()
    cluster.server.faults.add({ resource: 'services', verb: 'watch', times: 1, faults: [fault] })
    const requests = cluster.server.log.length
    cluster.server.cut()
    await eventually(() => cluster.asked(requests).includes('watch services'))
    for (let number = 20; number < 26; number++) cluster.put(...service(number))
    await cluster.converged()
    expect(removals.lines).toEqual([])
    expect(cluster.asked(requests).filter(asked => asked.startsWith('list'))).toEqual([])
    await daemon.caughtUp()
    expect(daemon.said('fault')).toEqual([])
  })

  it('F27: a server that allows one stream a connection is served by several', async () => {
    await open({ maxConcurrentStreams: 1 })
    const daemon = await cluster.running()
    cluster.put(...service(20))
    await cluster.converged()
    expect(cluster.server.connectionCount).toBeGreaterThanOrEqual(4)
    expect(cluster.server.connectionCount).toBeLessThanOrEqual(8)
    cluster.server.cut()
    cluster.put(...service(21))
    await cluster.converged()
    expect(await ask('/healthz')).toMatchObject({ code: 200 })
    expect(daemon.hasExited).toBe(false)
  })
})

describe('how the API server is found', () => {
  /** Runs a command for which a file, $0, is /etc/hosts. */
  const WITH_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'

  /** What the resolver says of api.test to a daemon that was started so. */
  function resolveTo(address: string | undefined): void {
    writeFileSync(cluster.file('hosts'), address === undefined ? '' : `${address} api.test\n`)
  }

  it('F96: a name that cannot be looked up is looked up again, and a new address is used', async () => {
    const authority = createAuthority()
    const certificate = authority.issue({ names: ['api.test'] })
    await open({ tls: authority, certificate })
    resolveTo('127.0.0.1')
    const { port, store } = cluster.server
    cluster.configure({ server: `https://api.test:${port}` })
    const daemon = await cluster.running({
      wrapper: ['unshare', '-m', 'sh', '-c', WITH_HOSTS, cluster.file('hosts')],
    })
    const before = listRuleset()
    resolveTo(undefined)
    await cluster.server.refuse()
    await daemon.logged('the last known state stays')
    cluster.put(...service(20))
    const elsewhere = await ApiServer.start({ tls: authority, certificate, host: '127.0.0.2', port, store })
    onTestFinished(() => elsewhere.close())
    await pause(2_000)
    expect(listRuleset()).toBe(before)
    resolveTo('127.0.0.2')
    await cluster.converged()
    expect(frontendNames()).toContain(nameOf(20))
  })

  it('F97: an API server behind a Service of ours is told of, and where the kernel is empty the reason is', async () => {
    await open({ host: '0.0.0.0', port: 8080 })
    ip(['addr add 10.1.0.1/32 dev lo'])
    cluster.configure({ server: `https://${clusterIp(0)}:80`, tlsServerName: '127.0.0.1' })
    cluster.put(...service(0, { endpoints: ['10.1.0.1:8080'] }))
    const cold = cluster.daemon()
    await cold.logged('no Services known yet', 1, 30_000)
    expect(JSON.stringify(cold.said('no Services known yet')[0])).toContain(`${clusterIp(0)}:80`)
    expect(await ask('/healthz')).toMatchObject({ code: 503 })
    expect(listRuleset()).not.toContain('kube-proxy')
    await cold.stop()
    cluster.configure({ server: `https://127.0.0.1:${cluster.server.port}` })
    await cluster.programmedBefore()
    ip([`route add ${clusterIp(0)}/32 dev lo src 10.1.0.1`])
    cluster.configure({ server: `https://${clusterIp(0)}:80`, tlsServerName: '127.0.0.1' })
    const warm = await cluster.running()
    expect(await warm.logged('is a Service that kprobe serves')).toHaveLength(1)
    cluster.put(...service(20))
    await cluster.converged()
  })
})
