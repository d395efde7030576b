import { spawnSync } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeAll, describe, expect, it } from 'vitest'
import { runCommand, runInProcess, tool } from '../support/command.ts'
import { COMMAND, Daemons, EXAMPLES } from '../support/daemon.ts'
import { forwardPackets } from '../support/lab/netns.ts'
import { patientMs } from '../support/patience.ts'
import { CLUSTER_CIDR } from '../support/pipeline.ts'

const daemons = new Daemons()

beforeAll(forwardPackets)

afterEach(async () => {
  await daemons.end()
  tool('nft', 'flush', 'ruleset')
})

const QUESTION = ['--from=203.0.113.9', '--to=10.96.1.1:80']
/** Names of deploy/examples that are no words. */
const NAMES = ['storefront', 'checkout', 'example-node', 'other-node', 'shop']

/** Unpacks a bundle, and gives its folder. */
function unpacked(path: string): string {
  const folder = `${path}.d`
  mkdirSync(folder)
  tool('tar', '-xzf', path, '-C', folder)
  return join(folder, 'kprobe-bundle')
}

/** Every pair of names, hash and node replaced: what is left is the verdict. */
function withoutNames(text: string): string {
  return text
    .replaceAll(/[a-z0-9-]+\/[a-z0-9-]+:/g, 'ns/name:')
    .replaceAll(/-[A-Z2-7]{16}/g, '-HASH')
    .replaceAll(/"(node|slice)": "[^"]*"/g, '"$1": "name"')
}

/** Follows a packet through the rules that a source leads to. */
async function explained(source: string, node: string, mode: string): Promise<string> {
  const flags = [`--source=file:${source}`, `--hostname-override=${node}`, `--proxy-mode=${mode}`]
  const { out, err } = await runInProcess(['explain', ...QUESTION, '-o=json', ...flags])
  expect(err).toBe('')
  // The kernel holds the rules of the daemon, which has the names of its objects.
  const { kernel: _, answer: __, isServed: ___, ...verdict } = JSON.parse(out)
  return withoutNames(JSON.stringify(verdict, undefined, 2))
}

describe.each(['nftables', 'iptables'])('the objects of a bundle of %s mode', mode => {
  it('F176: load with --source=file:, also with names renamed', async () => {
    const folder = daemons.folder()
    const socket = `--admin-socket=${join(folder, 'admin.sock')}`
    const args = [`--proxy-mode=${mode}`, socket, '--hostname-override=example-node']
    const daemon = await daemons.running({ source: EXAMPLES, args })
    const bundle = async (name: string, ...flags: readonly string[]) => {
      const path = join(folder, name)
      const ended = await runInProcess(['debug', 'bundle', `--output=${path}`, socket, ...flags])
      expect(ended, ended.err).toMatchObject({ code: 0, err: expect.not.stringContaining('kprobe debug') })
      return unpacked(path)
    }
    const whole = await bundle('whole.tar.gz')
    const renamed = await bundle('renamed.tar.gz', '--redact')
    const rules = tool('nft', 'list', 'ruleset')
    await daemon.stop()
    for (const name of NAMES) {
      expect(tool('grep', '-rl', name, whole), name).not.toBe('')
      expect(spawnSync('grep', ['-rl', name, renamed], { encoding: 'utf8' }).stdout, name).toBe('')
    }

    const here = await explained(EXAMPLES, 'example-node', mode)
    expect(here).toContain('"outcomes"')
    expect(await explained(join(whole, 'objects.json'), 'example-node', mode)).toBe(here)
    const [node] = JSON.parse(tool('cat', join(renamed, 'objects.json'))).items
    expect(await explained(join(renamed, 'objects.json'), node.metadata.name, mode)).toBe(here)

    tool('nft', 'flush', 'ruleset')
    const flags = [
      `--proxy-mode=${mode}`,
      '--hostname-override=example-node',
      `--cluster-cidr=${CLUSTER_CIDR}`,
    ]
    const ended = runCommand(['run', '--once', ...flags, `--source=file:${join(whole, 'objects.json')}`])
    expect(ended, ended.err).toMatchObject({ code: 0, err: expect.not.stringContaining('level=warn') })
    expect(sortedLines(tool('nft', 'list', 'ruleset'))).toEqual(sortedLines(rules))
  })
})

/** Lines without counters and without what the first start found, in one order. */
function sortedLines(ruleset: string): readonly string[] {
  return ruleset
    .replaceAll(/packets \d+ bytes \d+|; route_localnet was 0/g, '')
    .split(/[\n,]/)
    .map(line => line.trim())
    .sort()
}

describe('a bundle', () => {
  it('has what other programs have in nf_tables', () => {
    const ruleset = `table inet other {
      set some { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 192.0.2.1-192.0.2.9 } }
      chain in { type filter hook input priority -5; policy accept
        ip saddr @some counter drop comment "a rule"
        ip6 daddr 2001:db8::1 tcp dport { 22, 80 } accept
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
    const text = tool('cat', join(unpacked(path), 'ruleset.txt'))
    for (const part of ['table inet other {', 'ip saddr @some', 'ip6 daddr 2001:db8::1', 'comment "a rule"'])
      expect(text).toContain(part)
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
    expect(stderr).toMatch(/^missing ruleset\.txt: .*EPERM/m)
    expect(stderr).toMatch(
      /^kprobe debug bundle: the bundle has neither the objects .*: run the command as root/m,
    )
    expect(status).toBe(1)
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
