import { spawn, spawnSync } from 'node:child_process'
import { openSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeAll, describe, expect, it } from 'vitest'
import { type Ended, runInProcess, tool } from '../support/command.ts'
import { COMMAND, Daemons, EXAMPLE_FLAGS, EXAMPLES } from '../support/daemon.ts'
import { forwardPackets } from '../support/lab/netns.ts'
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

beforeAll(forwardPackets)

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
    nft('flush', 'chain', 'ip', 'kube-proxy', 'early-prerouting')
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

describe('kprobe explain', () => {
  it('says where the examples lead a client, before and after they are in the kernel', async () => {
    const ended = await kprobe('explain', ...EXAMPLE_FLAGS, ...OUTSIDE)
    expect(ended).toMatchObject({ code: 0, err: '' })
    expect(ended.out).toContain('Service: shop/cart:http (ClusterIP)')
    expect(ended.out).toMatch(
      /^would be served: any of 2 endpoints, a half each; .*; rules of nftables mode are not/,
    )
    expect(ended.out).toMatch(/^Source address: kept$/m)
    expect(nft('list', 'ruleset')).toBe('')
    await programExamples()
    const programmed = await kprobe('explain', ...EXAMPLE_FLAGS, ...OUTSIDE)
    expect(programmed).toMatchObject({ code: 0, err: '' })
    expect(programmed.out).toMatch(/^served: any of 2 endpoints, a half each; /)
    expect(programmed.out).toMatch(/^ {2}50 % +10\.244\.0\.11:8080 /m)
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
    const child = spawn(process.execPath, [COMMAND, 'run', '-v=1', '--admin-socket=', ...EXAMPLE_FLAGS], {
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

  it('is no condition either with a log that cannot be written', () => {
    const full = openSync('/dev/full', 'w')
    const args = [COMMAND, 'run', '--once', '-v4', ...EXAMPLE_FLAGS]
    expect(spawnSync(process.execPath, args, { stdio: ['ignore', 'ignore', full] }).status).toBe(0)
    expect(nft('list', 'tables')).toContain('kube-proxy')
  })
})
