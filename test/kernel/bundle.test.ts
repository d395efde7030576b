import { spawnSync } from 'node:child_process'
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import { afterEach, beforeAll, describe, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { assert } from '../../src/base/errors.ts'
import { type Bundle, jsonIn, readBundle } from '../../src/cli/bundle.ts'
import type { HttpServer } from '../../src/http/server.ts'
import { openAdminServer } from '../../src/telemetry/admin-server.ts'
import { type Ended, runCommand, runInProcess, tool } from '../support/command.ts'
import { COMMAND, Daemons, EXAMPLES } from '../support/daemon.ts'
import { forwardPackets } from '../support/lab/netns.ts'
import { eventually, patientMs } from '../support/patience.ts'

const BE_LIBERAL = '/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal'
const daemons = new Daemons()

beforeAll(forwardPackets)
const servers: HttpServer[] = []

afterEach(async () => {
  await daemons.end()
  for (const server of servers.splice(0)) await server.close()
  tool('nft', 'flush', 'ruleset')
  writeFileSync(BE_LIBERAL, '0')
})

/** Runs a command over a bundle in a network namespace that it makes. */
function replay(path: string, ...args: readonly string[]): Ended {
  const argv = ['-n', process.execPath, COMMAND, 'replay', path, '--', ...args]
  const { status, stdout, stderr } = spawnSync('unshare', argv, {
    encoding: 'utf8',
    timeout: patientMs(60_000),
  })
  return { code: status, out: stdout, err: stderr }
}

const QUESTION = ['--from=203.0.113.9', '--to=10.96.1.1:80']
/** Names of deploy/examples that are no words. */
const NAMES = ['storefront', 'checkout', 'example-node', 'other-node', 'shop']

async function started(mode: string) {
  const folder = daemons.folder()
  const socket = join(folder, 'admin.sock')
  const args = [`--proxy-mode=${mode}`, `--admin-socket=${socket}`, '--hostname-override=example-node']
  const daemon = await daemons.running({ source: EXAMPLES, args })
  const bundle = async (name: string, ...flags: readonly string[]) => {
    const path = join(folder, name)
    const ended = await runInProcess(['debug', 'bundle', `--output=${path}`, ...flags])
    expect(ended.err).not.toContain('kprobe debug')
    expect(ended.code).toBe(0)
    return path
  }
  return { daemon, socket, folder, bundle }
}

/** What the daemon of a bundle says, from a process that repairs nothing. */
async function standIn(bundle: Bundle, socket: string): Promise<void> {
  const page = (name: string) => () => jsonIn(bundle, `${name}.json`)
  let isListening = false
  servers.push(
    openAdminServer({
      path: socket,
      clock: systemClock,
      report: ({ kind }) => {
        isListening ||= kind === 'listening'
      },
      config: page('config'),
      snapshot: page('snapshot'),
      state: page('state'),
      receipts: page('receipts'),
      plan: page('plan'),
      debug: page('debug'),
      services: () => [],
      status: () => ({}),
    }),
  )
  await eventually(() => isListening)
}

function octetsOf(path: string): Buffer {
  return gunzipSync(readFileSync(path))
}

describe.each(['nftables', 'iptables', 'userspace'])('a bundle of %s mode', mode => {
  it('F176: gives the same why and dump elsewhere, also with names renamed', async () => {
    // The rules of iptables mode depend on it, and a new namespace has the other value.
    writeFileSync(BE_LIBERAL, '1')
    if (mode === 'userspace') tool('ip', '-batch', listenersAddresses())
    const { socket, bundle } = await started(mode)
    const whole = await bundle('whole.tar.gz', `--admin-socket=${socket}`)
    const renamed = await bundle('renamed.tar.gz', `--admin-socket=${socket}`, '--redact')
    const why = await runInProcess(['why', ...QUESTION, `--admin-socket=${socket}`])
    const dump = await runInProcess(['dump', 'all', '-o', 'wide'])
    for (const path of mode === 'userspace' ? [] : [whole, renamed]) {
      const proved = await runInProcess(['verify', '--prove', `--kernel=${path}`])
      expect(proved, proved.err).toMatchObject({ code: 0, out: expect.stringMatching(/^proved: /m) })
    }
    expect(why.out).toMatch(/^served/)
    expect(replay(whole, 'why', ...QUESTION)).toEqual(why)
    expect(replay(whole, 'dump', 'all', '-o', 'wide')).toEqual(dump)

    const { manifest } = await readBundle(renamed)
    expect(manifest).toMatchObject({ redacted: true, files: expect.arrayContaining([]) })
    for (const name of NAMES) {
      expect(octetsOf(whole).includes(name), name).toBe(true)
      expect(octetsOf(renamed).includes(name), name).toBe(false)
    }
    const again = replay(renamed, 'why', ...QUESTION)
    expect(again.code).toBe(0)
    expect(withoutNames(again.out)).toEqual(withoutNames(why.out))
    const verified = replay(renamed, 'verify')
    expect(verified.code, verified.out).toBe(0)
    const rows = replay(renamed, 'dump', '-o', 'json')
    expect(rows.code).toBe(dump.code)
    expect(factsOf(rows.out)).toEqual(factsOf((await runInProcess(['dump', '-o', 'json'])).out))
  })
})

describe.each(['nftables', 'iptables'])('a bundle of %s mode', mode => {
  it('is damaged as the kernel was', async () => {
    const { daemon, socket, bundle } = await started(mode)
    const before = await readBundle(await bundle('before.tar.gz', `--admin-socket=${socket}`))
    await daemon.stop()
    await standIn(before, socket)
    if (mode === 'nftables') tool('nft', 'flush', 'chain', 'ip', 'kube-proxy', 'services')
    else tool('nft', 'flush', 'chain', 'ip', 'nat', 'KUBE-SERVICES')
    const flags = `--admin-socket=${socket}`
    const [damaged, renamed] = await Promise.all(
      ['damaged.tar.gz', 'renamed.tar.gz'].map(async (name, at) => {
        const path = join(daemons.folder(), name)
        const argv = ['debug', 'bundle', `--output=${path}`, flags, ...(at === 1 ? ['--redact'] : [])]
        expect((await runInProcess(argv)).code).toBe(0)
        return path
      }),
    )
    assert(damaged !== undefined && renamed !== undefined, 'two bundles')
    const why = await runInProcess(['why', ...QUESTION, flags])
    expect(why.out).toContain('rules damaged: ')
    expect(replay(damaged, 'why', ...QUESTION)).toEqual(why)
    expect(replay(damaged, 'dump', 'all')).toEqual(await runInProcess(['dump', 'all']))
    const again = replay(renamed, 'why', ...QUESTION)
    expect([again.code, withoutNames(again.out)]).toEqual([why.code, withoutNames(why.out)])
  })
})

/** The relay listens at addresses that the node has to have. Gives the file of a batch. */
function listenersAddresses(): string {
  const path = join(daemons.folder(), 'batch')
  const lines = ['link set lo up', 'address add 192.0.2.10/32 dev lo', 'address add 2001:db8::10/128 dev lo']
  writeFileSync(path, `${lines.join('\n')}\n`)
  return path
}

/** Every pair of names, hash and node replaced: what is left is the verdict. */
function withoutNames(text: string): string {
  return text
    .replaceAll(/[a-z0-9-]+\/[a-z0-9-]+:/g, 'ns/name:')
    .replaceAll(/-[A-Z2-7]{16}/g, '-HASH')
    .replaceAll(/ on [a-z0-9-]+:/g, ' on node:')
}

function factsOf(text: string): readonly string[] {
  const { services } = JSON.parse(text)
  return services.map(({ service: _, ...row }: { readonly service: string }) => JSON.stringify(row)).sort()
}

describe('a bundle', () => {
  it('has what other programs have in nf_tables, and replay names what the kernel does not take', async () => {
    const ruleset = `table inet other {
      counter hits { packets 3 bytes 4 }
      set some { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 192.0.2.1-192.0.2.9 } }
      chain in { type filter hook input priority -5; policy accept
        ip saddr @some counter name "hits" drop comment "a rule"
        tcp dport { 22, 80 } accept
        tcp dport vmap { 23 : drop, 25 : jump more }
      }
      chain more { limit rate 5/second log prefix "x" accept; }
    }`
    const rules = join(daemons.folder(), 'rules')
    writeFileSync(rules, ruleset)
    tool('nft', '-f', rules)
    const path = join(daemons.folder(), 'b.tar.gz')
    const ended = runCommand(['debug', 'bundle', `--output=${path}`])
    expect(ended.code).toBe(0)
    expect(ended.err).toMatch(/^missing config\.json: no daemon answers at /m)
    expect(ended.err).toContain(
      'missing log.txt: the daemon writes no log file; add one with --log-file=FILE (`kubectl logs ... > FILE`)\n',
    )
    // Rules of another program say nothing in `dump`: what nft lists is the judge.
    const script = `"$1" "$2" replay "$3" -- dump; nft list ruleset`
    const argv = ['-n', 'sh', '-c', script, 'sh', process.execPath, COMMAND, path]
    const loaded = spawnSync('unshare', argv, { encoding: 'utf8', timeout: patientMs(60_000) })
    expect(loaded.stderr).not.toContain('not loaded: rule')
    const listed = tool('nft', 'list', 'ruleset')
    expect(loaded.stdout.slice(-listed.length)).toBe(listed)
    expect(replay(path, 'why', ...QUESTION)).toMatchObject({
      code: 1,
      err: expect.stringContaining('the bundle has no config.json and no snapshot.json: no daemon answered'),
    })
  })

  it('is a failure where it has neither objects nor rules', () => {
    const path = join(daemons.folder(), 'empty.tar.gz')
    const argv = [
      '--bounding-set=-net_admin',
      process.execPath,
      COMMAND,
      'debug',
      'bundle',
      `--output=${path}`,
    ]
    const { status, stderr } = spawnSync('setpriv', argv, { encoding: 'utf8', timeout: patientMs(60_000) })
    expect(stderr).toMatch(/^missing nf_tables\.bin: .*EPERM/m)
    expect(stderr).toMatch(
      /^kprobe debug bundle: the bundle has neither the objects .*: run the command as root/m,
    )
    expect(status).toBe(1)
  })

  it('F177: is loaded into no network namespace that is in use, and writes nothing', () => {
    const folder = daemons.folder()
    const path = join(folder, 'b.tar.gz')
    expect(runCommand(['debug', 'bundle', `--output=${path}`]).code).toBe(0)
    const temporary = join(folder, 'tmp')
    mkdirSync(temporary)
    tool('nft', 'add', 'table', 'ip', 'other')
    expect(runCommand(['replay', path, '--', 'dump'])).toMatchObject({
      code: 1,
      out: '',
      err: expect.stringContaining(
        'this network namespace is in use: it has rules of nf_tables; run it in a',
      ),
    })
    const script = 'ip link add veth0 type veth peer name veth1 && exec "$@"'
    const argv = ['-n', 'sh', '-c', script, 'sh', process.execPath, COMMAND, 'replay', path, '--', 'dump']
    const env = { ...process.env, TMPDIR: temporary }
    const { status, stderr } = spawnSync('unshare', argv, {
      encoding: 'utf8',
      env,
      timeout: patientMs(60_000),
    })
    expect([status, stderr]).toEqual([1, expect.stringContaining('it has the device veth')])
    expect([readdirSync(temporary), tool('nft', 'list', 'ruleset').trim()]).toEqual([
      [],
      'table ip other {\n}',
    ])
  })

  it('is not written where the named daemon does not answer', () => {
    const path = join(daemons.folder(), 'b.tar.gz')
    expect(runCommand(['debug', 'bundle', `--output=${path}`, '--admin-socket=/nowhere/a.sock'])).toEqual({
      code: 1,
      out: '',
      err: 'kprobe debug bundle: no daemon answers at /nowhere/a.sock\n',
    })
  })
})
