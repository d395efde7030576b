import { beforeEach, describe, expect, it } from 'vitest'
import { runCommand } from '../../src/commands.ts'
import { MODE_NAMES } from '../../src/config/modes.ts'
import { EXAMPLE_FLAGS } from '../support/daemon.ts'
import { FakeIo } from '../support/fake-io.ts'

let io: FakeIo

beforeEach(() => {
  io = new FakeIo({ hostName: 'a-host' })
})

const kprobe = (...argv: string[]) => runCommand(argv, io)

describe('kprobe cleanup', () => {
  it('names the modes that there are', async () => {
    expect(await kprobe('cleanup', '--proxy-mode=foo')).toBe(2)
    expect(io.stderr).toContain(`--proxy-mode: "foo" is not one of ${MODE_NAMES.join(', ')}\n`)
  })
})

describe('kprobe', () => {
  it('prints its usage and fails without a command', async () => {
    expect(await kprobe()).toBe(2)
    expect(io.stderr).toMatch(/^Usage:$/m)
  })

  it.each([['--help'], ['-h'], ['help']])('prints its usage for %s', async flag => {
    expect(await kprobe(flag)).toBe(0)
    expect(io.stdout).toMatch(/^ {2}dump +print what the kernel holds/m)
  })

  const COMMANDS = [
    'run',
    'api',
    'dump',
    'plan',
    'verify',
    'why',
    'explain',
    'flows',
    'top',
    'doctor',
    'init',
    'cleanup',
    'version',
  ]
  it.each([undefined, ...COMMANDS])('wraps the help of %s to 60 columns', async name => {
    io = new FakeIo({ columns: 60 })
    expect(await kprobe(...(name === undefined ? [] : [name]), '--help-all')).toBe(0)
    expect(io.stdout.split('\n').filter(line => line.length > 60)).toEqual([])
  })

  it('begins the flags of a command with those that it has alone', async () => {
    expect(await kprobe('why', '--help')).toBe(0)
    expect(io.stdout).toMatch(/^Flags of this command:$[\s\S]*^ {2}--from [\s\S]*^Source and node:$/m)
  })

  it('does not call a flag a command', async () => {
    expect(await kprobe('-v')).toBe(2)
    expect(io.stderr).toContain('kprobe: no such flag without a command: "-v"\n')
  })

  it.each(['run', 'api', 'dump', 'plan', 'explain', 'cleanup', 'version', 'completion'])(
    'prints the help of %s',
    async name => {
      expect(await kprobe(name, '--nonsense', '--help')).toBe(0)
      expect(io.stdout).toContain(`kprobe ${name}`)
      expect(io.stdout).toContain('-h, --help')
      for (const line of io.stdout.split('\n')) expect(line.length).toBeLessThanOrEqual(120)
      const viaTopic = io.stdout
      io.stdout = ''
      await kprobe('help', name)
      expect(io.stdout).toBe(viaTopic)
    },
  )

  it('prints the version for programs: as JSON, and one field a line', async () => {
    expect(await kprobe('version', '-o', 'json')).toBe(0)
    expect(JSON.parse(io.stdout)).toEqual({
      version: 'from source',
      node: process.version,
      platform: `linux/${process.arch}`,
    })
    for (const argv of [['--version=raw'], ['version', '--version=raw'], ['run', '--version=raw']]) {
      io.stdout = ''
      expect(await kprobe(...argv)).toBe(0)
      expect(io.stdout).toBe(
        `version: from source\nnode: ${process.version}\nplatform: linux/${process.arch}\n`,
      )
    }
    expect(await kprobe('version', '-o', 'xml', '--nonsense', 'x')).toBe(2)
    expect(io.stderr.split('\n')).toEqual(
      expect.arrayContaining([
        'kprobe version: --nonsense: no such flag',
        'kprobe version: --output: "xml" is not one of text, json, yaml',
        'kprobe version: "x": no such argument',
      ]),
    )
  })

  it('prints a version', async () => {
    expect(await kprobe('--version')).toBe(0)
    expect(await kprobe('run', '--version')).toBe(0)
    expect(io.stdout).toMatch(/^kprobe .+\nkprobe .+\n$/)
  })

  it.each([
    [['plan', ...EXAMPLE_FLAGS, '-o', 'xml'], /--output: "xml" is not one of text, json, yaml/],
    [['dump', 'pf'], /"pf": no such argument; there are services, nft, ipvs, ipset, iptables, all/],
    [['dump', 'services', '-o', 'nft'], /--output: nft is for `kprobe dump nft`/],
    [
      ['dump', '--service', 'web/'],
      /--service: "web\/" is not the name of a Service; give NAMESPACE\/NAME, svc/,
    ],
    [['dump', '--admin-socket', 'x.sock'], /--admin-socket: "x.sock" is not an absolute path\n/],
    [['dump', '--family', '5'], /--family: "5" is not one of IPv4, IPv6, ip, ip6, ipv4, ipv6\n/],
    [['cleanup', 'now'], /"now": no such argument/],
    [['debug'], /debug: COMMAND: is missing; there is bundle/],
    [['debug', 'all'], /"all": no such argument; there is bundle/],
    [['completion'], /completion: SHELL: is missing; there are bash, zsh, fish, services/],
    [['explain', ...EXAMPLE_FLAGS], /--to: is required; give/],
    [
      ['explain', ...EXAMPLE_FLAGS, '--from', '1.2.3.4', '--to', '1.2.3.4'],
      /--to: needs a port from 1 to 65535: ADDRESS:PORT/,
    ],
    [
      ['explain', ...EXAMPLE_FLAGS, '--from', '1.2.3.4', '--to', '[fd00::1]:80'],
      /--to: is IPv6 while --from is IPv4/,
    ],
    [
      ['explain', ...EXAMPLE_FLAGS, '--from', '1.2.3.4', '--to', '1.2.3.4:0'],
      /--to: needs a port from 1 to 65535/,
    ],
    [
      ['explain', ...EXAMPLE_FLAGS, '--from', '1.2.3.4', '--to', '1.2.3.4:1', '--proto', 'icmp'],
      /--proto: "icmp" is not/,
    ],
  ])('refuses %j with exit code 2 and a hint', async (argv, message) => {
    expect(await kprobe(...argv)).toBe(2)
    expect(io.stderr).toMatch(message)
    expect(io.stderr).toMatch(/see `kprobe \w+ --help`\n$/)
    expect(io.stdout).toBe('')
  })
})

it('writes a bundle to standard output under both of its names, and to no terminal', async () => {
  for (const name of ['-', '/dev/stdout']) {
    const terminal = new FakeIo({ terminal: true })
    expect(await runCommand(['debug', 'bundle', '-o', name], terminal)).toBe(2)
    expect(terminal.stderr).toContain('--output: standard output is a terminal')
  }
})

describe('kprobe explain', () => {
  const explain = (from: string, to: string, ...more: string[]) =>
    kprobe('explain', ...EXAMPLE_FLAGS, '--from', from, '--to', to, ...more)

  it('shows where a connection may go, by which rules, and why endpoints are left out', async () => {
    expect(await explain('203.0.113.9', '10.96.1.1:80', '--cluster-cidr=10.244.0.0/16')).toBe(0)
    expect(io.stdout).toContain('Service: shop/cart:http (ClusterIP)')
    expect(io.stdout).toMatch(/^Source address: one of the node$/m)
    expect(io.stdout).toMatch(/^ {2}50 % +10\.244\.0\.11:8080/m)
    expect(io.stdout).toMatch(/^ {2}out +10\.244\.1\.12:8080 on other-node: not ready$/m)
    expect(io.stdout).toMatch(/ip kube-proxy services, rule \d+: /)
  })

  it('fails with the reason when the source cannot be read', async () => {
    const argv = ['--source=file:/nonexistent', '--from', '203.0.113.9', '--to', '10.96.1.5:80']
    expect(await kprobe('explain', ...argv)).toBe(1)
    expect(io.stderr).toMatch(/kprobe explain: \/nonexistent: cannot read the source files \(ENOENT\)/)
  })
})
