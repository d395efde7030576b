import { spawn } from 'node:child_process'
import { afterEach, describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { pause, systemClock } from '../../src/base/clock.ts'
import { watchRows } from '../../src/inspect/check/dump.ts'
import { type Ended, runInProcess, tool } from '../support/command.ts'
import { COMMAND, Daemons, EXAMPLE_FLAGS } from '../support/daemon.ts'
import { FakeIo } from '../support/fake-io.ts'
import { eventually } from '../support/patience.ts'

const kprobe = (...args: string[]): Promise<Ended> => runInProcess(args)
const nft = (...args: readonly string[]): string => tool('nft', ...args)
const daemons = new Daemons()

async function programExamples(): Promise<void> {
  expect(await kprobe('run', '--once', ...EXAMPLE_FLAGS)).toMatchObject({ code: 0, out: '' })
}

afterEach(async () => {
  await daemons.end()
  nft('flush', 'ruleset')
})

describe('kprobe dump', () => {
  it('says that the kernel holds nothing', async () => {
    expect(await kprobe('dump')).toMatchObject({ code: 0, err: 'the kernel holds no objects of kprobe\n' })
    expect((await kprobe('dump', '--family=ipv6')).err).toBe(
      'the kernel holds no objects of kprobe in the family ip6\n',
    )
  })

  it('shows Services as text, JSON and YAML', async () => {
    await programExamples()
    const text = await kprobe('dump')
    expect(text).toMatchObject({ code: 0, err: '' })
    expect(text.out).toMatch(
      /^shop\/cart:http +ClusterIP +10\.96\.1\.1:80\/TCP +10\.244\.0\.11:8080, 10\.244\.1\.11:8080 \(sticky 1800s\)$/m,
    )
    const json = JSON.parse((await kprobe('dump', '-o', 'json')).out)
    expect(json.services).toContainEqual({
      service: 'shop/cart:http',
      type: 'ClusterIP',
      protocol: 'TCP',
      frontend: '10.96.1.1:80',
      action: 'balance',
      endpoints: ['10.244.0.11:8080', '10.244.1.11:8080'],
      affinitySeconds: 1800,
      mode: 'nftables',
    })
    expect(text.out.trim().split('\n')).toHaveLength(json.services.length + 1)
    expect(parse((await kprobe('dump', '-o', 'yaml')).out)).toEqual(json)
  })

  it('shows rows as run does: in the same words and order', async () => {
    const ran = await kprobe('run', '--once', '-v=1', ...EXAMPLE_FLAGS)
    const dumped = (await kprobe('dump')).out.trim().split('\n').slice(1)
    expect(dumped.length).toBeGreaterThan(20)
    expect(ran.out).toContain(dumped.join('\n'))
  })

  it('shows the tables in the words of nft', async () => {
    await programExamples()
    const dumped = await kprobe('dump', '-o', 'nft')
    expect(dumped).toMatchObject({ code: 0, err: '' })
    expect(dumped.out).toBe((await kprobe('dump', 'nft')).out)
    expect(dumped.out).toContain('10.96.1.1 . tcp . 80')
    expect(sorted(dumped.out)).toBe(sorted(nft('--stateless', 'list', 'ruleset')))
  })

  it('shows the tables as JSON, and both together', async () => {
    await programExamples()
    const { nft: tables, services } = JSON.parse((await kprobe('dump', 'all', '-o', 'json')).out)
    expect(tables).toEqual(JSON.parse((await kprobe('dump', 'nft', '-o', 'json')).out))
    expect(services.length).toBeGreaterThan(10)
    const all = (await kprobe('dump', 'all')).out
    expect(all).toBe(`${(await kprobe('dump')).out}\n${(await kprobe('dump', 'nft')).out}`)
  })

  it('narrows to a Service and to a family', async () => {
    await programExamples()
    const cart = JSON.parse((await kprobe('dump', '--service=shop/cart', '-o', 'json')).out).services
    expect(new Set(cart.map(({ service }: { service: string }) => service))).toEqual(
      new Set(['shop/cart:http']),
    )
    const six = JSON.parse(
      (await kprobe('dump', '--service=shop/cart', '--family=IPv6', '-o', 'json')).out,
    ).services
    expect(six.length).toBeGreaterThan(0)
    expect(six.length).toBeLessThan(cart.length)
    for (const { frontend } of six) expect(frontend).toMatch(/^\[/)
    expect((await kprobe('dump', 'nft', '--family=ip')).out).toMatch(/^table ip kube-proxy/)
    expect((await kprobe('dump', 'nft', '--family=ip')).out).not.toContain('table ip6')
    const one = (await kprobe('dump', '-o', 'nft', '--service=shop/cart')).out
    expect(one).toContain('shop/cart:http')
    expect(one).not.toContain('edge/')
  })

  it('narrows to a namespace, and sorts by a field', async () => {
    await programExamples()
    const { out } = await kprobe('dump', '-n', 'shop', '--sort-by=frontend', '-o', 'json')
    const rows: readonly { service: string; frontend: string }[] = JSON.parse(out).services
    expect(rows.every(({ service }) => service.startsWith('shop/'))).toBe(true)
    const frontends = rows.map(({ frontend }) => frontend)
    expect(frontends).toContain('10.96.1.1:80')
    const { compare } = new Intl.Collator('en', { numeric: true })
    expect(frontends).toEqual(frontends.toSorted(compare))
    expect(await kprobe('dump', '-A')).toEqual(await kprobe('dump'))
    expect(await kprobe('dump', '-n', 'nobody')).toMatchObject({
      code: 0,
      err: 'the kernel serves no Service of the namespace nobody\n',
    })
  })

  it('prints what changes while it watches, until it is interrupted', async () => {
    await programExamples()
    const child = spawn(process.execPath, [COMMAND, 'dump', '-w', '--service=shop/cart'])
    const ended = new Promise(done => child.on('close', code => done(code)))
    let out = ''
    child.stdout.on('data', chunk => {
      out += chunk
    })
    try {
      await eventually(() => out.includes('10.96.1.1:80/TCP'))
      const before = out
      nft('delete', 'element', 'ip', 'kube-proxy', 'cluster-ips', '{ 10.96.1.1 }')
      await eventually(() => out.length > before.length)
      nft('delete', 'table', 'ip', 'kube-proxy')
      await eventually(() => out.includes('gone'))
      expect(out.slice(before.length)).toMatch(/^shop\/cart:http +ClusterIP +10\.96\.1\.1:80\/TCP +.+$/m)
      expect(out.slice(before.length)).not.toContain('FRONTEND')
      child.kill('SIGINT')
      expect(await ended).toBe(0)
    } finally {
      child.kill('SIGKILL')
    }
  })

  it('misses no change between the printed rows and the first look', async () => {
    const stop = new AbortController()
    const io = new FakeIo({ signal: stop.signal })
    const row = { service: 'shop/cart', type: 'ClusterIP', protocol: 'TCP', frontend: '10.96.1.1:80' }
    let reads = 0
    const watching = watchRows(io, {
      first: async () => {
        // A commit of another program comes after the rows were read.
        nft('add', 'table', 'ip', 'other')
        return { rows: [{ ...row, action: 'balance', endpoints: [] }], isNftAlone: true }
      },
      read: async () => {
        reads++
        return { rows: [], isNftAlone: true }
      },
      textOf: rows => `heading\n${rows.map(({ frontend, problem }) => `${frontend} ${problem}\n`).join('')}`,
    })
    await eventually(() => io.stdout !== '')
    stop.abort()
    await watching
    expect([io.stdout, reads]).toEqual(['10.96.1.1:80 gone\n', 1])
  })

  it('reads no rows before its reader has those that it printed', async () => {
    const stop = new AbortController()
    const io = new FakeIo({ signal: stop.signal })
    const events: string[] = []
    const read = async () => {
      events.push('read')
      const row = {
        service: 'a/b',
        type: 'ClusterIP',
        protocol: 'TCP',
        frontend: `10.96.0.${events.length}:80`,
      }
      return { rows: [{ ...row, action: 'balance', endpoints: [] }], isNftAlone: false }
    }
    const watching = watchRows(
      {
        signal: io.signal,
        outLost: io.outLost,
        out: () => events.push('printed'),
        outWritten: async () => {
          // Longer than the time between two looks.
          await pause(systemClock, 700, stop.signal)
          events.push('written')
        },
      },
      { first: read, read, textOf: () => '' },
    )
    await eventually(() => events.length >= 5)
    stop.abort()
    await watching
    expect(events.slice(0, 5)).toEqual(['read', 'read', 'printed', 'written', 'read'])
  })

  it.each([
    [['nft', '-n', 'shop', '-w'], /--namespace: is for `kprobe dump services`\n.*--watch: is for/],
    [['-w', '-o', 'json'], /--watch: prints rows; -o json is one document\n/],
    [['-n', 'shop', '-A'], /--all-namespaces: contradicts --namespace\n/],
    [['-n', 'shop', '--service=ops/x'], /--service: "ops\/x" is not in the namespace shop\n/],
    [['-n', 'a/b'], /--namespace: "a\/b" is not the name of a namespace\n/],
    [['--sort-by=age'], /--sort-by: "age" is not one of service, /],
    [['-o', 'xml'], /--output: "xml" is not one of text, /],
  ])('refuses %j', async (args, message) => {
    const ended = await kprobe('dump', ...args)
    expect(ended.code).toBe(2)
    expect(ended.err).toMatch(message)
  })

  it.each([
    [['--service=ns/none'], 1, 'the kernel holds nothing for the Service "ns/none"\n'],
    [
      ['--service=ns/none', '--family=ip', '-o', 'json'],
      1,
      'the kernel holds nothing for the Service "ns/none" in the family ip\n',
    ],
    [
      ['--servce', 'shop/cart'],
      2,
      'kprobe dump: --servce: no such flag; did you mean --service?\nsee `kprobe dump --help`\n',
    ],
    [['--service=cart/'], 2, /--service: "cart\/" is not the name of a Service; give NAMESPACE\/NAME, /],
    [['--service=CRAT'], 1, /Service "default\/CRAT"; did you mean shop\/cart\?\n/],
    [['--family=inet'], 2, /--family: "inet" is not one of IPv4, IPv6, ip, ip6, ipv4, ipv6\n/],
  ])('answers %j', async (args, code, message) => {
    await programExamples()
    const ended = await kprobe('dump', ...args)
    expect(ended.code).toBe(code)
    if (typeof message === 'string') expect(ended.err).toBe(message)
    else expect(ended.err).toMatch(message)
  })
})

/** Elements of session affinity count down between two listings. */
function withoutTimers(listing: string): string {
  return listing.replace(/ expires \S+/g, '')
}

/** Lines and elements in one order: each printer has its own. */
function sorted(listing: string): string {
  return withoutTimers(listing)
    .split(/[\n,]/)
    .map(part => part.replace(/^\s*(elements = \{)?\s*|\s*\}?\s*$/g, ''))
    .filter(part => part !== '')
    .sort()
    .join('\n')
}
