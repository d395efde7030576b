import { execFileSync } from 'node:child_process'
import { beforeEach, describe, expect, it } from 'vitest'
import { ask, metric } from '../faults/cluster.ts'
import { FileSite } from '../faults/file-site.ts'
import { clusterIp, services } from '../faults/objects.ts'
import { type Ended, runInProcess, tool } from '../support/command.ts'
import type { Daemon } from '../support/daemon.ts'
import { eventually } from '../support/patience.ts'
import { CLUSTER_CIDR, NODE_NAME } from '../support/pipeline.ts'

/* A daemon that was killed leaves a mode behind, and the next one runs in another mode. */

const site = FileSite.ofEachTest()
const MODES = ['nftables', 'iptables', 'userspace'] as const
const PAIRS = MODES.flatMap(before =>
  MODES.filter(after => after !== before).map(after => ({ before, after })),
)
const SERVERS = ['--healthz-bind-address=127.0.0.1:10256', '--metrics-bind-address=127.0.0.1:10249']

beforeEach(() => execFileSync('ip', ['link', 'set', 'lo', 'up']))

const start = (mode: string, ...args: readonly string[]): Daemon =>
  site.daemon({ args: [`--proxy-mode=${mode}`, ...args] })

/** Everything in the kernel that leads to the cluster IP of this Service. */
const rulesOf = (number: number): number =>
  tool('nft', 'list', 'ruleset')
    .split('\n')
    .filter(line => line.includes(clusterIp(number))).length

/** Objects in the kernel of modes other than this one. */
function othersThan(mode: string): readonly string[] {
  const names = { nftables: 'kube-proxy', userspace: 'kube-proxy-userspace' } as const
  const listed = tool('nft', 'list', 'ruleset')
  return MODES.filter(each => each !== mode).filter(each =>
    each === 'iptables'
      ? /chain KUBE-SERVICES|KUBE-SVC-|KUBE-SEP-/.test(listed)
      : new RegExp(`table ip6? ${names[each]} `).test(listed),
  )
}

async function retired(daemon: Daemon, mode: string): Promise<void> {
  await daemon.logged('first sync complete')
  await eventually(() => othersThan(mode).length === 0)
}

function verify(mode: string): Promise<Ended> {
  const flags = [`--hostname-override=${NODE_NAME}`, `--cluster-cidr=${CLUSTER_CIDR}`]
  return runInProcess(['verify', `--source=file:${site.folder}`, `--proxy-mode=${mode}`, ...flags])
}

describe.each(PAIRS)('$before mode, killed, and then $after mode', ({ before, after }) => {
  it('serves no Service that is deleted since', async () => {
    const first = await site.running(services(3), { args: [`--proxy-mode=${before}`] })
    expect(rulesOf(2)).toBeGreaterThan(0)
    first.kill('SIGKILL')
    await first.ended()
    site.write(services(2))
    const second = start(after)
    await retired(second, after)
    expect(rulesOf(2)).toBe(0)
    expect(rulesOf(1)).toBeGreaterThan(0)
  })

  it('verify names what is left, before the next start', async () => {
    await killed(await site.running(services(3), { args: [`--proxy-mode=${before}`] }))
    const { code, out } = await verify(after)
    expect(out).toMatch(/chains of iptables mode|tables kube-proxy\S* of another proxy mode/)
    expect(code).toBe(3)
  })

  it('serves none when it was killed amid a large change', async () => {
    const first = await site.running(services(3), { args: [`--proxy-mode=${before}`] })
    site.write(services(1_500))
    await new Promise(resolve => setTimeout(resolve, 120))
    first.kill('SIGKILL')
    await first.ended()
    site.write(services(2))
    await retired(start(after), after)
    expect(rulesOf(2)).toBe(0)
  })
})

/** What iptables-restore writes in the name of kube-proxy. */
function writeAsKubeProxy(): void {
  for (const family of ['ip', 'ip6']) {
    const saved = tool(`${family}tables-nft-save`)
    tool('nft', `flush table ${family} nat; flush table ${family} filter; flush table ${family} mangle`)
    execFileSync(`${family}tables-nft-restore`, [], { input: saved })
  }
}

async function killed(daemon: Daemon): Promise<void> {
  daemon.kill('SIGKILL')
  await daemon.ended()
}

it('removes chains that kprobe took over from kube-proxy', async () => {
  await killed(await site.running(services(3), { args: ['--proxy-mode=iptables'] }))
  writeAsKubeProxy()
  await killed(await site.running(services(3), { args: ['--proxy-mode=iptables'] }))
  site.write(services(2))
  await retired(start('nftables'), 'nftables')
  expect(rulesOf(2)).toBe(0)
})

it('keeps chains that kube-proxy has written since, and says so everywhere', async () => {
  await killed(await site.running(services(3), { args: ['--proxy-mode=iptables'] }))
  writeAsKubeProxy()
  site.write(services(2))
  const daemon = start('nftables', ...SERVERS)
  const said = await daemon.logged('another program has written them since')
  expect(said).toMatchObject([{ mode: 'iptables' }])
  expect(rulesOf(2)).toBeGreaterThan(0)
  const why = 'iptables mode: chains of iptables mode, which kprobe keeps'
  await eventually(async () => (await ask('/healthz?verbose')).body.includes(`[-]leftovers failed: ${why}`))
  expect(await metric('kprobe_leftover_modes', 'mode="iptables"')).toBe(1)
  const differs = await verify('nftables')
  expect(differs.out).toContain('another program has written them since')
  expect(differs.code).toBe(3)
  expect((await runInProcess(['cleanup', '--leftovers-of=kube-proxy'])).code).toBe(0)
  expect(rulesOf(2)).toBe(0)
  expect((await verify('nftables')).code).toBe(0)
})
