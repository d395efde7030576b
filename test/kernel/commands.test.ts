import { spawn, spawnSync } from 'node:child_process'
import { cpSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { type Ended, runCommand, runInProcess, tool } from '../support/command.ts'
import { COMMAND, Daemons, EXAMPLE_FLAGS, EXAMPLES } from '../support/daemon.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { patientMs } from '../support/patience.ts'

const OUTSIDE = ['--from', '203.0.113.9', '--to', '10.96.1.1:80']

const kprobe = (...args: string[]): Promise<Ended> => runInProcess(args)
const shell = (script: string): Ended => {
  const { status, stdout, stderr } = spawnSync('bash', ['-c', script], {
    encoding: 'utf8',
    timeout: patientMs(),
  })
  return { code: status, out: stdout, err: stderr }
}
const nft = (...args: readonly string[]): string => tool('nft', ...args)
const quoted = (args: readonly string[]): string => args.map(arg => `'${arg}'`).join(' ')
const KPROBE = quoted([process.execPath, COMMAND])
const daemons = new Daemons()

const FIVE_IPS = [1, 2, 3, 4, 5].map(last => `10.244.0.${last}`)
const ALL_FIVE = `web:http +ClusterIP +10.96.9.1:80/TCP +${FIVE_IPS.map(ip => `${ip}:8080`).join(', ')}`
const FIVE_ENDPOINTS = [serviceOf('web', '10.96.9.1'), sliceOf('web', FIVE_IPS)]

/** A copy of the command with nothing around it: neither packages nor sources. */
function lonelyCopy(): string {
  const folder = join(daemons.folder(), 'dist')
  cpSync(dirname(COMMAND), folder, { recursive: true })
  return join(folder, 'kprobe.mjs')
}

async function programExamples(): Promise<void> {
  expect(await kprobe('run', '--once', ...EXAMPLE_FLAGS)).toMatchObject({ code: 0, out: '' })
}

afterEach(async () => {
  await daemons.end()
  nft('flush', 'ruleset')
})

describe('kprobe plan', () => {
  it('exits 3 while there is a difference and 0 when run has made it', async () => {
    const before = await kprobe('plan', ...EXAMPLE_FLAGS)
    expect(before.code).toBe(3)
    expect(before.out).toMatch(/^Service shop\/cart:\n {2}\+ /m)
    expect(before.out).toMatch(/^\d+ changes for \d+ Services and shared rules\n$/m)
    expect(nft('list', 'ruleset')).toBe('')
    await programExamples()
    expect(await kprobe('plan', ...EXAMPLE_FLAGS)).toEqual({
      code: 0,
      out: 'no difference: the kernel holds the wanted state\n',
      err: '',
    })
  })

  it.each([
    ['plan', []],
    ['verify', []],
    ['explain', ['--from=203.0.113.7', '--to=192.0.2.10:30080']],
  ])('%s warns when the Node of this machine is not in the source', async (command, more) => {
    const { err } = await kprobe(command, ...more, `--source=file:${EXAMPLES}`, '--hostname-override=nobody')
    expect(err).toContain(
      'Node nobody not found; there are example-node, other-node: set --hostname-override to the name of the Node of this machine',
    )
  })

  it('prints the same for machines', async () => {
    const json = await kprobe('plan', ...EXAMPLE_FLAGS, '-o', 'json')
    expect(json.code).toBe(3)
    const { changes, complete, objects } = JSON.parse(json.out)
    expect([objects.length, complete]).toEqual([changes, true])
    expect(objects).toContainEqual(expect.objectContaining({ verb: 'add', service: 'shop/cart' }))
    expect(parse((await kprobe('plan', ...EXAMPLE_FLAGS, '-o', 'yaml')).out)).toEqual({
      changes,
      complete,
      objects,
    })
  })
})

describe('warnings in the pipe of the results', () => {
  /** Runs the command with both streams in one pipe, whose reader begins late. Gives the first line that matches. */
  function lineOf(
    args: readonly string[],
    pattern: RegExp,
  ): { readonly line: number; readonly lines: number } {
    const { out } = shell(`${KPROBE} ${quoted(args)} 2>&1 | (sleep 0.5; cat)`)
    const lines = out.trimEnd().split('\n')
    return { line: lines.findIndex(line => pattern.test(line)), lines: lines.length }
  }

  it('stand after all results of a slow reader', async () => {
    const file = join(daemons.folder(), 'many.json')
    const items = Array.from({ length: 300 }, (_, index) => ({
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { namespace: 'many', name: `web-${index}` },
      spec: {
        clusterIP: `10.96.${index >> 8}.${index & 255}`,
        ports: [{ port: 80 }],
        ...(index === 0 ? { externalIPs: ['127.0.0.1'], typo: true } : {}),
      },
    }))
    writeFileSync(file, JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
    const source = [`--source=file:${file}`, '--hostname-override=example-node']
    for (const [args, pattern] of [
      [['plan', '-o', 'json'], /typo/],
      [['plan', '-o', 'json'], /refused: Service many\/web-0/],
      [['plan'], /refused: Service many\/web-0/],
      [['verify'], /typo/],
    ] as const) {
      const { line, lines } = lineOf([...args, ...source], pattern)
      expect(lines - line, args.join(' ')).toBeLessThanOrEqual(2)
    }
    expect((await kprobe('run', '--once', ...source)).code).toBe(0)
    nft('flush', 'chain', 'ip', 'kube-proxy', 'nat-prerouting')
    const { line, lines } = lineOf(['dump', '-o', 'json'], /^DAMAGED: /)
    expect(line).toBe(lines - 1)
  })

  it('are cut short after a summary, and name the command that lists all', async () => {
    const file = join(daemons.folder(), 'refused.json')
    const items = Array.from({ length: 25 }, (_, index) => ({
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: {
        namespace: 'many',
        name: `web-${index}`,
        labels: { 'kubernetes.io/service-name': 'web' },
      },
      addressType: 'FQDN',
      endpoints: [],
    }))
    const node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'another' } }
    writeFileSync(file, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: [...items, node] }))
    const source = [`--source=file:${file}`, '--hostname-override=example-node']
    const { err } = await kprobe('plan', '--summary', ...source)
    expect(err.match(/EndpointSlice many/g)).toHaveLength(19)
    // It concerns the whole result, and is not cut.
    expect(err).toMatch(/^Node example-node not found; there are another: /m)
    expect(err).toMatch(/^and 6 more warnings; `kprobe plan` lists all$/m)
    expect((await kprobe('plan', ...source)).err.match(/EndpointSlice many/g)).toHaveLength(25)
  })
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

  it.each([
    [
      [],
      'web:http +ClusterIP +10.96.9.1:80/TCP +10.244.0.1:8080, 10.244.0.2:8080, 10.244.0.3:8080 \\+2 more',
    ],
    [['-o', 'wide'], ALL_FIVE],
    [['--service=ns/web'], ALL_FIVE],
  ])('dump %j names as many endpoints as it should', async (args, line) => {
    const file = join(daemons.folder(), 'five.json')
    writeFileSync(file, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: FIVE_ENDPOINTS }))
    const ran = await kprobe('run', '--once', `--source=file:${file}`, '--hostname-override=example-node')
    expect(ran.code, ran.err).toBe(0)
    expect((await kprobe('dump', ...args)).out).toMatch(new RegExp(`^ns/${line}$`, 'm'))
  })

  it('shows the tables in the words of nft, through its library', async () => {
    await programExamples()
    const listing = nft('list', 'ruleset')
    expect(listing).toContain('10.96.1.1 . tcp . 80')
    for (const what of [['nft'], []]) {
      const dumped = await kprobe('dump', ...what, '-o', 'nft')
      expect(dumped).toMatchObject({ code: 0, err: '' })
      expect(withoutTimers(dumped.out)).toBe(withoutTimers(listing))
    }
  })

  it('shows the same tables by its own printer where no package is installed', async () => {
    await programExamples()
    const alone = runCommand(['dump', '-o', 'nft'], { command: lonelyCopy() })
    expect(alone).toMatchObject({ code: 0, err: '' })
    expect(alone.out).toBe((await kprobe('dump', 'nft')).out)
    expect(sorted(alone.out)).toBe(sorted(nft('--stateless', 'list', 'ruleset')))
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
    [['--service=cart'], 2, /--service: "cart" is not written NAMESPACE\/NAME\n/],
    [['--family=inet'], 2, /--family: "inet" is not one of IPv4, IPv6, ip, ip6, ipv4, ipv6\n/],
  ])('answers %j', async (args, code, message) => {
    await programExamples()
    const ended = await kprobe('dump', ...args)
    expect(ended.code).toBe(code)
    if (typeof message === 'string') expect(ended.err).toBe(message)
    else expect(ended.err).toMatch(message)
  })
})

describe('kprobe explain', () => {
  it('says where the examples lead a client, before and after they are in the kernel', async () => {
    const ended = await kprobe('explain', ...EXAMPLE_FLAGS, ...OUTSIDE)
    expect(ended).toMatchObject({ code: 0, err: '' })
    expect(ended.out).toContain('Service: shop/cart:http (ClusterIP)')
    expect(ended.out).toMatch(/^ {2}50% {2}would go to 10\.244\.0\.11:8080, source address kept$/m)
    expect(ended.out).toContain('Outcome, the kernel: rules of nftables mode are not in the kernel\n')
    expect(nft('list', 'ruleset')).toBe('')
    await programExamples()
    const programmed = await kprobe('explain', ...EXAMPLE_FLAGS, ...OUTSIDE)
    expect(programmed).toMatchObject({ code: 0, err: '' })
    expect(programmed.out).toMatch(/^ {2}50% {2}goes to 10\.244\.0\.11:8080, source address kept$/m)
    expect(programmed.out).toContain('Outcome, the kernel: the same\n')
  })
})

describe('kprobe cleanup', () => {
  it('removes both tables, leaves what is not ours, and can be repeated', async () => {
    await programExamples()
    nft('add', 'table', 'ip', 'somebody')
    expect(await kprobe('cleanup')).toEqual({
      code: 0,
      out: 'removed table ip kube-proxy\nremoved table ip6 kube-proxy\n',
      err: '',
    })
    expect(await kprobe('cleanup')).toEqual({
      code: 0,
      out: 'the kernel holds no objects of kprobe\n',
      err: '',
    })
    expect(nft('list', 'tables')).toBe('table ip somebody\n')
  })
})

describe('standard output', () => {
  it('has no colors in a pipe; on a terminal it has, unless NO_COLOR is set', async () => {
    await programExamples()
    const onTerminal = (variable: string) =>
      shell(`TERM=xterm ${variable} script -qec "${KPROBE.replaceAll("'", '')} dump" /dev/null </dev/null`)
        .out
    expect((await kprobe('dump')).out).not.toContain('\u001b[')
    expect(onTerminal('NO_COLOR=')).toContain('\u001b[1mSERVICE')
    expect(onTerminal('NO_COLOR=1')).not.toContain('\u001b[')
  })

  it('may lose its reader: a command still ends with its own exit code', () => {
    const read = shell(`${KPROBE} plan ${quoted(EXAMPLE_FLAGS)} | head -n 1; echo "\${PIPESTATUS[0]}"`)
    expect(read).toEqual({ code: 0, out: 'shared by all Services:\n3\n', err: '' })
    expect(shell(`${KPROBE} dump --help | true; exit "\${PIPESTATUS[0]}"`)).toMatchObject({
      code: 0,
      err: '',
    })
  })

  it.each([
    'dump --help',
    `plan ${quoted(EXAMPLE_FLAGS)}`,
    `explain ${quoted([...EXAMPLE_FLAGS, ...OUTSIDE])}`,
  ])('fails with one sentence when it cannot be written: %s', command => {
    const ended = shell(`${KPROBE} ${command} >/dev/full`)
    expect(ended.code).toBe(1)
    expect(ended.err).toMatch(/^kprobe: standard output is incomplete: ENOSPC: .*\n$/)
  })

  it('is no condition for the daemon: it warns once, and serves on', async () => {
    const child = spawn(process.execPath, [COMMAND, 'run', '-v=1', ...EXAMPLE_FLAGS], {
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    const exited = new Promise<number | null>(resolve => child.on('exit', resolve))
    let err = ''
    try {
      child.stdout.destroy()
      child.stderr.on('data', chunk => {
        err += chunk
      })
      await expect.poll(() => err).toContain('cannot write to standard output')
      nft('delete', 'table', 'ip', 'kube-proxy')
      await expect.poll(() => nft('list', 'tables')).toContain('table ip kube-proxy')
      expect(child.exitCode).toBeNull()
    } finally {
      child.kill('SIGTERM')
    }
    expect(await exited).toBe(0)
    expect(err.match(/cannot write to standard output/g)).toHaveLength(1)
  })

  it('ends soon after SIGTERM with a reader that stands still, and says what is missing', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'kprobe-stalled-'))
    const items = Array.from({ length: 10_000 }, (_, index) => ({
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { namespace: 'ns', name: `web-${index}` },
      spec: { clusterIP: `10.96.${index >> 8}.${index & 255}`, ports: [{ port: 80 }] },
    }))
    writeFileSync(join(folder, 'all.json'), JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
    const args = ['api', `--source=file:${folder}`, '--hostname-override=here', '--print', '--watch']
    const child = spawn(process.execPath, [COMMAND, ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
    const exited = new Promise<number | null>(resolve => child.on('exit', resolve))
    let err = ''
    child.stderr.on('data', chunk => {
      err += chunk
    })
    try {
      await new Promise(resolve => child.stdout.once('readable', resolve))
      child.kill('SIGTERM')
      expect(await exited).toBe(1)
      expect(err).toMatch(
        /^kprobe: standard output is incomplete: reader stopped with \d+ bytes unwritten\n$/,
      )
    } finally {
      child.kill('SIGKILL')
      rmSync(folder, { recursive: true, force: true })
    }
  })

  it('is no condition either with a log that cannot be written', () => {
    const full = openSync('/dev/full', 'w')
    const args = [COMMAND, 'run', '--once', '-v4', ...EXAMPLE_FLAGS]
    expect(spawnSync(process.execPath, args, { stdio: ['ignore', 'ignore', full] }).status).toBe(0)
    expect(nft('list', 'tables')).toContain('kube-proxy')
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
