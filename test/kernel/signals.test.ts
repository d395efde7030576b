import { execFileSync } from 'node:child_process'
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { COMMAND, type Daemon, Daemons, EXAMPLES } from '../support/daemon.ts'

const daemons = new Daemons()

afterEach(async () => {
  await daemons.end()
  execFileSync('nft', ['flush', 'ruleset'])
})

async function start(...args: string[]): Promise<{ readonly daemon: Daemon; readonly socket: string }> {
  const socket = join(daemons.folder(), 'admin')
  const daemon = await daemons.running({
    source: EXAMPLES,
    args: [`--admin-socket=${socket}`, '--hostname-override=example-node', ...args],
  })
  await daemon.until(() => existsSync(socket))
  return { daemon, socket }
}

/** False once the process is gone. */
function isSent(pid: number, signal: NodeJS.Signals): boolean {
  try {
    return process.kill(pid, signal)
  } catch {
    return false
  }
}

describe('kprobe run', () => {
  it.each(['SIGTERM', 'SIGINT', 'SIGQUIT'] as const)(
    'ends at %s, says so, and removes its socket',
    async name => {
      const { daemon, socket } = await start()
      expect(await daemon.stop(name)).toMatchObject({ code: 0, signal: null })
      expect(daemon.said(`exiting: ${name}; rules stay in the kernel`)).toHaveLength(1)
      expect(existsSync(socket)).toBe(false)
      expect(execFileSync('nft', ['list', 'tables'], { encoding: 'utf8' })).toContain('table ip kube-proxy')
    },
  )

  it('logs its state at SIGUSR2, as often as it is asked', async () => {
    const { daemon } = await start()
    daemon.kill('SIGUSR2')
    expect((await daemon.logged('state'))[0]).toMatchObject({
      mode: 'nftables',
      services: 10,
      quarantined: 0,
      healthz: 200,
      missing: [],
    })
    daemon.kill('SIGUSR2')
    await daemon.logged('state', 2)
  })

  it('removes its socket though SIGUSR2 and SIGHUP come until the end', async () => {
    const { daemon, socket } = await start()
    const { daemonPid } = daemon
    const ended = daemon.stop()
    while (isSent(daemonPid, 'SIGUSR2') && isSent(daemonPid, 'SIGHUP'))
      await new Promise(resolve => setTimeout(resolve, 1))
    await ended
    expect(existsSync(socket)).toBe(false)
  })

  it('reads its configuration again at SIGHUP, and names each field with both values', async () => {
    const config = join(daemons.folder(), 'config.yaml')
    const head =
      'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n'
    writeFileSync(config, `${head}hostnameOverride: example-node\n`)
    const { daemon } = await start(`--config=${config}`)
    daemon.kill('SIGHUP')
    await daemon.logged('configuration unchanged')
    writeFileSync(
      config,
      `${head}hostnameOverride: other\nnftables:\n  masqueradeAll: true\n  syncPeriod: 10s\n`,
    )
    daemon.kill('SIGHUP')
    await daemon.logged('configuration applied')
    const read = daemon.said('SIGHUP: reading the configuration file again')
    expect(read).toMatchObject([{ config }, { config }])
    expect(daemon.said('configuration field changed')).toMatchObject([
      { level: 'info', field: 'nftables.masqueradeAll', from: false, to: true },
      { level: 'info', field: 'nftables.syncPeriod', from: '10m0s', to: '10s' },
    ])
    expect((await daemon.stop()).code).toBe(0)
  })

  it('serves on at SIGHUP without a configuration file, and says that there is none', async () => {
    const { daemon } = await start()
    daemon.kill('SIGHUP')
    await daemon.logged('SIGHUP ignored')
    expect((await daemon.stop()).code).toBe(0)
  })
})

describe('the log of kprobe run', () => {
  it('warns once of an empty mode in the file, and says what set the mode', async () => {
    const config = join(daemons.folder(), 'config.yaml')
    const head = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n'
    writeFileSync(config, `${head}mode: ""\n`)
    const { daemon } = await start(`--config=${config}`)
    expect(daemon.said('mode is empty: kprobe uses nftables')).toMatchObject([{ level: 'warn', config }])
    expect(daemon.said('kprobe starting')).toMatchObject([{ mode: 'nftables', modeFrom: 'default' }])
  })
})

describe('standard output of kprobe run', () => {
  const tables = async (...args: string[]) => {
    const daemon = daemons.start({ source: EXAMPLES, args: ['--once', ...args] })
    expect((await daemon.ended()).code).toBe(0)
    return daemon
  }

  it('is empty with --logging-format=json, and standard error has nothing but JSON', async () => {
    const planned = await tables('--backend=dry-run')
    expect([planned.out, planned.strayLines]).toEqual(['', []])
    expect(planned.said('plan').length).toBeGreaterThan(10)
    const { out, strayLines, records } = await tables()
    expect([out, strayLines]).toEqual(['', []])
    expect(records[0]?.msg).toBe('kprobe starting')
    expect(records.filter(({ msg }) => msg === 'first sync complete')).toHaveLength(1)
  })

  it('is empty without a terminal at -v=0, and has the table with -v=1', async () => {
    expect((await tables('--logging-format=text', '-v=0')).out).toBe('')
    expect((await tables('--logging-format=text', '-v=1')).out).toMatch(/^programmed 10 Services, /m)
  })

  it('has the table on a terminal', () => {
    const { execPath } = process
    const command = `${execPath} ${COMMAND} run --once --source=file:${EXAMPLES} --hostname-override=example-node`
    const out = execFileSync('script', ['-qec', command, '/dev/null'], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    })
    expect(out).toMatch(/^programmed 10 Services, /m)
  })
})
