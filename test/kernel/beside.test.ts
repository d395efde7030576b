import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { afterEach, beforeAll, describe, expect, it } from 'vitest'
import { holderOfPort, processesNamed } from '../../src/cli/processes.ts'
import { type KubeProxyWatch, kubeProxyWatchOf } from '../../src/daemon/beside.ts'
import { openNetfilter } from '../../src/daemon/open.ts'
import { Daemons, EXAMPLES } from '../support/daemon.ts'
import { DaemonRun } from '../support/daemon-run.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { createMetrics } from '../support/metrics.ts'
import { configFrom } from '../support/parse-flags.ts'
import { eventually } from '../support/patience.ts'
import { recordedLog } from '../support/recorded-log.ts'
import { KUBE_PROXY } from '../support/xt-tables.ts'

const daemons = new Daemons()
const watches: KubeProxyWatch[] = []

beforeAll(() => void execFileSync('ip', ['link', 'set', 'lo', 'up']))

afterEach(async () => {
  for (const watch of watches.splice(0)) await watch.stop()
  await daemons.end()
  execFileSync('nft', ['flush', 'ruleset'])
})

/** Writes the table nat as a sync of kube-proxy does: chains of its own are flushed, all others stay. */
function syncKubeProxy(program = 'iptables-nft-restore'): void {
  const nat = KUBE_PROXY.slice(KUBE_PROXY.indexOf('*nat')).split('\n')
  // The matches of session affinity need a module.
  const input = nat.filter(line => !line.includes('recent') && !line.includes('-A PREROUTING')).join('\n')
  execFileSync(program, ['--noflush'], { input })
}

function watching(...argv: readonly string[]) {
  const clock = new FakeClock()
  const { log, lines } = recordedLog()
  const watch = kubeProxyWatchOf(configFrom(argv), {
    clock,
    log,
    metrics: createMetrics(),
    tell: () => undefined,
    openTransport: openNetfilter,
    ports: () => [],
    writesChains: () => false,
  })
  if (watch !== undefined) watches.push(watch)
  return { watch, lines, minute: () => clock.advance(60_000) }
}

describe('a kube-proxy beside kprobe', () => {
  it('in iptables mode shows by each sync, and not by what it left', async () => {
    syncKubeProxy()
    const { watch, minute, lines } = watching()
    for (const _ of [1, 2, 3]) await minute()
    expect([watch?.check, lines]).toEqual([undefined, []])
    syncKubeProxy()
    await minute()
    await minute()
    expect(watch?.check?.failure).toBe('runs beside kprobe: the chain KUBE-SERVICES in ip nat was written')
    expect(lines).toEqual([expect.objectContaining({ level: 'error' })])
  })

  it('in nftables mode shows by its table, which kprobe does not have in this mode', async () => {
    const { watch, minute } = watching()
    await minute()
    const write = 'add table ip kube-proxy; add chain ip kube-proxy cluster-ips-check'
    execFileSync('nft', [`${write}; add rule ip kube-proxy cluster-ips-check accept`])
    for (const _ of [1, 2]) await minute()
    const sign = 'runs beside kprobe: the chain cluster-ips-check in ip kube-proxy was written'
    expect(watch?.check?.failure).toBe(sign)
  })

  it.each([
    ['kube-proxy', 'process kube-proxy (pid '],
    ['exporter', undefined],
  ])('shows by the port for health only if it holds it: %s', async (name, sign) => {
    const listening = `fs.writeFileSync('/proc/self/comm', '${name}'); net.createServer().listen(10_256, '127.0.0.1', () => console.log('up'))`
    const holder = spawn(process.execPath, ['-e', listening], { stdio: ['ignore', 'pipe', 'inherit'] })
    await once(holder.stdout, 'data')
    const [run, clock] = [new DaemonRun(), new FakeClock()]
    let readings = 0
    const holderOf = async (port: number) => {
      const found = await holderOfPort(port)
      readings++
      return found
    }
    const flags = ['--healthz-bind-address=127.0.0.1:10256', '--metrics-bind-address=', '--admin-socket=']
    const source = [`--source=file:${EXAMPLES}`, '--hostname-override=example-node']
    void run.start(configFrom([...source, ...flags]), { listens: true, clock, holderOf, processesNamed })
    try {
      await run.until(() => run.log.includes('healthz: cannot listen'), 'the port is in use')
      // A reading reads real files, which this clock does not wait for.
      await run.until(async () => {
        await clock.advance(60_000)
        return readings > 3
      }, 'it was read several times')
      expect(run.log.includes('kube-proxy runs on this node beside kprobe')).toBe(sign !== undefined)
      expect(run.log).toContain(sign ?? '')
    } finally {
      holder.kill()
      await run.end()
    }
  })

  it('is not looked for by a named proxy', () => {
    expect(watching('--service-proxy-name=red').watch).toBeUndefined()
  })

  it('in nftables mode shows by its first commit; kprobe says so, repairs its own tables, and serves on', async () => {
    const daemon = await daemons.running({ source: EXAMPLES, args: ['--hostname-override=example-node'] })
    const chain = 'service-ULMVA6XW-ns1/svc1/tcp/p80'
    execFileSync('nft', ['-f', '-'], {
      input: `add chain ip kube-proxy ${chain}\nadd chain ip kube-proxy cluster-ips-check\n`,
    })
    const [said] = await daemon.logged('kube-proxy runs on this node beside kprobe')
    expect(said).toMatchObject({ level: 'error' })
    const health = await (await fetch('http://127.0.0.1:10256/healthz?verbose')).text()
    expect(health).toContain('[-]kube-proxy failed: runs beside kprobe: ')
    expect(health).toContain('(does not decide)')
    const metrics = await (await fetch('http://127.0.0.1:10249/metrics')).text()
    expect(metrics).toMatch(/^kprobe_kube_proxy_beside 1$/m)
    await eventually(() => !execFileSync('nft', ['list', 'chains'], { encoding: 'utf8' }).includes(chain))
    await daemon.caughtUp()
    expect(daemon.said('kube-proxy runs on this node')).toHaveLength(1)
    expect(daemon.hasExited).toBe(false)
  })

  it("in iptables mode keeps its chains, whatever kprobe's nftables mode does", async () => {
    const daemon = await daemons.running({ source: EXAMPLES, args: ['--hostname-override=example-node'] })
    for (const _ of [1, 2]) syncKubeProxy()
    const kept = () => execFileSync('iptables-nft-save', ['-t', 'nat'], { encoding: 'utf8' })
    const before = kept().replace(/^#.*\n/gm, '')
    await daemon.caughtUp()
    expect(kept().replace(/^#.*\n/gm, '')).toBe(before)
    expect(daemon.said('repaired foreign changes')).toEqual([])
  })
})
