import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { copyFileSync, mkdirSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type Ended, runCommand, runInProcess, tool } from '../support/command.ts'
import { type Daemon, Daemons, EXAMPLE_FLAGS, EXAMPLES } from '../support/daemon.ts'

/* The commands in iptables mode, beside the tools of the trade. */

const SOURCE = [...EXAMPLE_FLAGS, '--proxy-mode=iptables']
const CLEANUP = ['cleanup', '--proxy-mode=iptables']

const kprobe = (...args: readonly string[]): Promise<Ended> => runInProcess(args)
const nft = (...args: readonly string[]): string => tool('nft', ...args)
const LOCALNET = '/proc/sys/net/ipv4/conf/all/route_localnet'
const setting = (): string => tool('cat', LOCALNET).trim()
const daemons = new Daemons()

/** What iptables-save prints, without the comments around each table. */
function saved(): string {
  return ['iptables-nft-save', 'ip6tables-nft-save']
    .map(name => tool(name))
    .join('')
    .replace(/^#.*\n/gm, '')
}

const FOREIGN = `*filter
:CNI-FORWARD - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A FORWARD -j CNI-FORWARD
-A CNI-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:CNI-HOSTPORT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT
COMMIT
`

function restoreForeign(): void {
  execFileSync('iptables-nft-restore', [], { input: FOREIGN })
}

function foreignLines(): readonly string[] {
  return saved()
    .split('\n')
    .filter(line => /CNI-|KUBELET|dport 22 /.test(line))
}

/** Not a fresh network namespace: the commands run in this process, and its threads would stay in the one before. */
beforeEach(() => writeFileSync(LOCALNET, '0'))

afterEach(async () => {
  await daemons.end()
  nft('flush', 'ruleset')
})

it('explain in iptables mode follows packets through the chain that kubelet writes as well', async () => {
  expect(await kprobe('run', '--once', ...SOURCE)).toMatchObject({ code: 0 })
  const martian = await kprobe('explain', ...SOURCE, '--from=10.244.0.5', '--to=127.0.0.5:80')
  expect(martian.out).toMatch(/^Path, the same in the kernel:$/m)
  expect(martian.code).toBe(0)
})

const COST = expect.stringContaining('a new connection costs the kernel up to 5 µs in iptables mode')
const NO_COST = expect.not.stringContaining('a new connection')

describe.each([
  ['as kube-proxy writes them', [], COST],
  ['optimized', ['--iptables-optimize'], NO_COST],
])('the commands in iptables mode, rules %s', (_, more, cost) => {
  const source = [...SOURCE, ...more]

  it('put into the kernel what is asked for, print it, and take it out again', async () => {
    restoreForeign()
    const before = foreignLines()
    expect(await kprobe('plan', ...source)).toMatchObject({ code: 3, err: cost })
    // Not in this process: its log is looked at.
    const ran = runCommand(['run', '--once', '-v=1', ...source])
    expect(ran, ran.err).toMatchObject({ code: 0, out: expect.stringMatching(/programmed 10 Services/) })
    expect(ran.err).toContain('session affinity remembers 100 clients an endpoint')
    expect(setting()).toBe('1')
    expect(await kprobe('plan', ...source)).toMatchObject({
      code: 0,
      out: 'no difference: the kernel holds the wanted state\n',
    })
    expect((await kprobe('verify', ...source)).code).toBe(0)
    expect((await kprobe('dump', 'iptables', '-o', 'iptables-save')).out.replace(/^#.*\n/gm, '')).toBe(
      saved(),
    )
    expect((await kprobe(...CLEANUP)).out).toMatch(
      /^removed \d+ chains with \d+ rules, and the rules that led to them, in table ip nat$/m,
    )
    expect((await kprobe(...CLEANUP)).out).toBe('the kernel holds no objects of kprobe\n')
    expect(foreignLines()).toEqual(before)
    const left = saved()
      .split('\n')
      .filter(line => line.includes('KUBE-'))
    expect(left.filter(line => !/KUBE-(?:FIREWALL|KUBELET-CANARY)/.test(line))).toEqual([])
    expect(left.filter(line => line.includes('-j KUBE-FIREWALL'))).toHaveLength(4)
  })

  it('show Services and rules', async () => {
    expect(await kprobe('run', '--once', ...source)).toMatchObject({ code: 0 })
    const text = (await kprobe('dump')).out
    expect(text).toMatch(
      /^shop\/cart:http +ClusterIP +10\.96\.1\.1:80\/TCP +10\.244\.0\.11:8080, 10\.244\.1\.11:8080 \(sticky 1800s\)$/m,
    )
    expect(text).toMatch(
      /^shop\/checkout:https +External +198\.51\.100\.22:443\/TCP +10\.244\.0\.31:8443 \(from outside; pods and node: 10\.244\.0\.31:8443, 10\.244\.1\.31:8443\)$/m,
    )
    expect(text).toMatch(/^shop\/coming-soon:http +NodePort +\*:30084\/TCP +none: reject$/m)
    expect(text).toMatch(/^shop\/storefront:http .*\(only from 198\.51\.100\.128\/25, 203\.0\.113\.0\/24\)$/m)
    const all = JSON.parse((await kprobe('dump', 'all', '-o', 'json')).out)
    expect(all.services).toEqual(JSON.parse((await kprobe('dump', '-o', 'json')).out).services)
    const { rules } = JSON.parse((await kprobe('dump', 'iptables', '-o', 'json')).out)
    expect(all.iptables).toEqual({ rules })
    const printed = new Set(saved().split('\n'))
    for (const { chain, rule } of rules) expect(printed).toContain(`-A ${chain} ${rule}`.trim())
    const cart = JSON.parse(
      (await kprobe('dump', 'iptables', '--service=shop/cart', '--family=IPv6', '-o', 'json')).out,
    ).rules
    expect(cart.length).toBeGreaterThan(3)
    for (const each of cart) expect(each).toMatchObject({ family: 'ip6', services: ['shop/cart:http'] })
    expect((await kprobe('dump', 'iptables', '--service=shop/cart')).out).toMatch(
      /^shop\/cart:http +ip nat KUBE-SEP-\w+ +.*-j DNAT --to-destination 10\.244\.0\.11:8080$/m,
    )
  })
})

describe('the record of iptables mode', () => {
  const record = (): string => nft('list', 'table', 'ip', 'kprobe-record')
  const run = (): Promise<Ended> => kprobe('run', '--once', ...SOURCE)

  it('keeps the value of route_localnet from before the first start', async () => {
    expect((await kprobe('init', ...SOURCE.slice(1))).code).toBe(0)
    const first = record()
    expect(first).toContain('comment "iptables mode of kprobe; route_localnet was 0"')
    expect((await run()).code).toBe(0)
    expect(record()).toBe(first)
    expect((await kprobe(...CLEANUP)).out).toMatch(
      /^changed sysctl net\/ipv4\/conf\/all\/route_localnet from 1 back to 0\nremoved table ip kprobe-record$/m,
    )
    expect(setting()).toBe('0')
  })

  it('names the chains with the command that removes them, and goes with them', async () => {
    expect((await run()).code).toBe(0)
    const { out } = await kprobe('cleanup')
    expect(out).toMatch(
      /^left by kprobe: \d+ chains .* in table ip filter of its iptables mode \(remove with `kprobe cleanup --proxy-mode=iptables`\)$/m,
    )
    expect(out).not.toMatch(/no objects of kprobe|kube-proxy/)
    const before = nft('list', 'ruleset')
    expect((await kprobe('cleanup', '--leftovers-of=kube-proxy')).out).toBe(
      `kube-proxy left nothing here that can be removed\n${out}`,
    )
    expect(nft('list', 'ruleset')).toBe(before)
    expect(setting()).toBe('1')
    expect((await kprobe(...CLEANUP)).code).toBe(0)
    expect(nft('list', 'tables')).not.toContain('kprobe')
  })

  it('leaves route_localnet as it is where kprobe did not set it', async () => {
    writeFileSync(LOCALNET, '1')
    expect((await run()).code).toBe(0)
    expect(record()).toContain('comment "iptables mode of kprobe"')
    expect((await kprobe(...CLEANUP)).out).toMatch(/^removed table ip kprobe-record$/m)
    expect(setting()).toBe('1')
  })

  it('stays while another proxy may need route_localnet', async () => {
    expect((await run()).code).toBe(0)
    nft('add', 'chain', 'ip', 'nat', 'KPABCDE-SERVICES')
    const left = 'left table ip kprobe-record and route_localnet=1: another proxy may need it\n'
    expect((await kprobe(...CLEANUP)).out).toContain(left)
    expect((await kprobe(...CLEANUP)).out).toBe(left)
    expect(setting()).toBe('1')
    nft('delete', 'chain', 'ip', 'nat', 'KPABCDE-SERVICES')
    expect((await kprobe('cleanup')).out).toContain('from 1 back to 0')
    expect(setting()).toBe('0')
  })

  it('says nothing about chains while a kube-proxy runs, and keeps its setting', async () => {
    expect((await run()).code).toBe(0)
    const program = join(daemons.folder(), 'kube-proxy')
    copyFileSync('/bin/sleep', program)
    const child = spawn(program, ['60'])
    try {
      expect((await kprobe('cleanup')).out).toMatch(
        /^the kernel holds no objects of kprobe\nleft by kube-proxy: /,
      )
      expect((await kprobe(...CLEANUP)).out).toContain('left table ip kprobe-record')
      expect(setting()).toBe('1')
    } finally {
      child.kill('SIGKILL')
      await once(child, 'exit')
    }
  })
})

it('prints nothing where there is nothing, and refuses what it cannot print', async () => {
  expect(await kprobe('dump', 'iptables')).toMatchObject({
    code: 0,
    err: 'the kernel holds no objects of kprobe\n',
  })
  expect(await kprobe('dump', 'iptables', '-o', 'iptables-save')).toEqual({
    code: 0,
    out: '# iptables\n# ip6tables\n',
    err: expect.stringMatching(
      /^this is the input of two commands: `--family=IPv4` prints that of iptables-restore/,
    ),
  })
  expect((await kprobe('dump', 'iptables', '-o', 'iptables-save', '--family=IPv4')).err).toBe('')
  expect(await kprobe('dump', 'services', '-o', 'iptables-save')).toMatchObject({
    code: 2,
    err: expect.stringContaining('iptables-save is for `kprobe dump iptables`'),
  })
  expect((await kprobe('dump', 'iptables', '--service=a/b', '-o', 'iptables-save')).code).toBe(2)
})

it('warns while a kube-proxy runs, which writes its chains again', async () => {
  const folder = daemons.folder()
  const program = join(folder, 'kube-proxy')
  copyFileSync('/bin/sleep', program)
  const child = spawn(program, ['60'])
  try {
    const pid = String(child.pid)
    expect((await kprobe(...CLEANUP)).err).toContain(`kube-proxy runs in this network namespace (pid ${pid})`)
    expect((await kprobe('cleanup')).err).toBe('')
    expect((await kprobe('doctor')).out).toMatch(
      new RegExp(`^warning +kube-proxy runs in this network namespace \\(pid ${pid}\\)`, 'm'),
    )
  } finally {
    child.kill('SIGKILL')
    await once(child, 'exit')
  }
  expect((await kprobe(...CLEANUP)).err).toBe('')
})

it('finds everything in this kernel that the mode needs', async () => {
  const doctor = await kprobe('doctor', '--proxy-mode=iptables')
  expect(doctor.code, doctor.out).toBe(0)
  expect(doctor.out).toMatch(/^ok +xtables for every Service +comment, conntrack, statistic/m)
})

it('names the chains of Services in large clusters, whose rules have no comments, by what leads to them', async () => {
  const rules = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ABCDEFGHIJKLMNOP - [0:0]
:KUBE-SEP-ABCDEFGHIJKLMNOP - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "shop/cart:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-ABCDEFGHIJKLMNOP
-A KUBE-SVC-ABCDEFGHIJKLMNOP -j KUBE-SEP-ABCDEFGHIJKLMNOP
-A KUBE-SEP-ABCDEFGHIJKLMNOP -p tcp -m tcp -j DNAT --to-destination 10.244.0.1:8080
COMMIT
`
  execFileSync('iptables-nft-restore', [], { input: rules })
  const { rules: rows } = JSON.parse((await kprobe('dump', 'iptables', '-o', 'json')).out)
  const ofServices = rows.filter(({ chain }: { readonly chain: string }) => chain.startsWith('KUBE-'))
  expect(ofServices.map(({ services }: { readonly services: unknown }) => services)).toEqual(
    ofServices.map(() => ['shop/cart:http']),
  )
  expect(ofServices).toHaveLength(3)
  expect((await kprobe('dump')).out).toMatch(
    /^shop\/cart:http +ClusterIP +10\.96\.0\.1:80\/TCP +10\.244\.0\.1:8080$/m,
  )
})

const STEP_MS = 15_000

const configuration = (mode: string, more = ''): string =>
  `apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ${mode}\n` +
  `hostnameOverride: example-node\nmetricsBindAddress: 127.0.0.1:10249\nhealthzBindAddress: 127.0.0.1:10256\n${more}`

function write(file: string, text: string): void {
  writeFileSync(`${file}.new`, text)
  renameSync(`${file}.new`, file)
}

function configIn(folder: string): string {
  mkdirSync(folder, { recursive: true })
  return join(folder, 'config.yaml')
}

describe('a daemon whose configuration changes', () => {
  const atLoopback = (): boolean => !saved().includes('! -d 127.0.0.0/8')
  const dropsInvalid = (): boolean => saved().includes('--ctstate INVALID')

  it('answers at loopback, and drops what cannot be placed, from the moment that it is told to', async () => {
    const config = configIn(daemons.folder())
    write(config, configuration('iptables', 'iptables:\n  localhostNodePorts: false\n'))
    const daemon = await daemons.running({ source: EXAMPLES, args: [`--config=${config}`] })
    expect([atLoopback(), setting(), dropsInvalid()]).toEqual([false, '0', true])
    write(config, configuration('iptables', 'conntrack:\n  tcpBeLiberal: true\n'))
    await daemon.until(() => atLoopback() && setting() === '1' && !dropsInvalid(), STEP_MS)
  })
})

describe('a daemon that changes its mode', () => {
  async function change(daemon: Daemon, file: string, mode: string): Promise<void> {
    const change = () => daemon.loggedAfter('switched from', () => write(file, configuration(mode)), STEP_MS)
    await daemon.loggedAfter('removed leftovers of', change, STEP_MS)
  }

  const hasChains = (): boolean => saved().includes(':KUBE-SERVICES ')
  const tables = (): string => nft('list', 'tables')

  async function metrics(): Promise<readonly string[]> {
    const answer = await fetch('http://127.0.0.1:10249/metrics')
    return (await answer.text()).split('\n').filter(line => /^kubeproxy_\w*iptables/.test(line))
  }

  it('has the rules of the new one before those of the old one go', async () => {
    tool('ip', 'link', 'set', 'lo', 'up')
    restoreForeign()
    const before = foreignLines()
    const config = configIn(daemons.folder())
    write(config, configuration('nftables'))
    const daemon = await daemons.running({ source: EXAMPLES, args: [`--config=${config}`] })
    expect(hasChains()).toBe(false)
    expect(await metrics()).toEqual([])
    await change(daemon, config, 'iptables')
    expect(hasChains()).toBe(true)
    expect(tables()).not.toContain('kube-proxy')
    const rules = (family: string, table: string): number =>
      nft('-a', 'list', 'table', family, table)
        .split(/\tchain /)
        .filter(text => /^KUBE-(?!KUBELET)/.test(text))
        .reduce((sum, text) => sum + (text.match(/# handle/g)?.length ?? 0) - 1, 0)
    const lines = await metrics()
    for (const [family, ip] of [
      ['IPv4', 'ip'],
      ['IPv6', 'ip6'],
    ] as const)
      for (const table of ['filter', 'nat'])
        expect(lines).toContain(
          `kubeproxy_sync_proxy_rules_iptables_total{table="${table}",ip_family="${family}"} ${rules(ip, table)}`,
        )
    expect(lines).toContain('kubeproxy_iptables_ct_state_invalid_dropped_packets_total 0')
    await change(daemon, config, 'nftables')
    expect(hasChains()).toBe(false)
    expect(tables()).toContain('table ip kube-proxy\n')
    expect(await metrics()).toEqual([])
    expect(foreignLines()).toEqual(before)
  })

  it('leaves chains alone that it may not have written', async () => {
    await kprobe('run', '--once', ...SOURCE)
    nft('delete', 'table', 'ip', 'kprobe-record')
    const before = saved()
    const daemon = await daemons.running({ source: EXAMPLES, args: ['--hostname-override=example-node'] })
    await daemon.logged('chains of iptables mode, which kprobe keeps', 1, STEP_MS)
    expect(saved()).toBe(before)
  })
})
