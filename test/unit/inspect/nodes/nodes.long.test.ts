import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { command } from '../../../../src/inspect/nodes/nodes.ts'
import { type ExecAnswer, type ExecAsked, ExecServer } from '../../../support/exec-server.ts'
import { FakeIo } from '../../../support/fake-io.ts'
import { temporaryFolder } from '../../../support/folder.ts'
import { eventually } from '../../../support/patience.ts'

let folder: string
let server: ExecServer | undefined

beforeEach(() => {
  folder = temporaryFolder()
})
afterEach(async () => {
  await server?.close()
  server = undefined
})

function podOn(node: string, isReady = true, program = 'kprobe') {
  return {
    metadata: { name: `${program}-${node}` },
    spec: { nodeName: node, containers: [{ name: 'sidecar' }, { name: program }] },
    status: { conditions: [{ type: 'Ready', status: isReady ? 'True' : 'False' }] },
  }
}

const VERSION = { stdout: statusOf('kprobe serves 3 Services on this node as configured') }

function statusOf(sentence: string, problems: readonly string[] = []): string {
  const facts = [{ name: 'daemon', text: '', values: { version: '1.2.3' } }]
  return JSON.stringify({ sentence, facts, problems: problems.map(text => ({ text })) })
}

async function cluster(
  nodes: readonly object[],
  answer: (asked: ExecAsked) => ExecAnswer = () => VERSION,
  label = 'k8s-app=kprobe',
) {
  const started = await ExecServer.start({ pods: nodes, answer, label })
  server = started
  const kubeconfig = join(folder, 'kubeconfig')
  writeFileSync(kubeconfig, started.kubeconfig)
  const run = async (...argv: readonly string[]) => {
    const io = new FakeIo()
    const code = await command.run([...argv, `--kubeconfig=${kubeconfig}`], io)
    return { code, out: io.stdout, err: io.stderr }
  }
  return { server: started, run, kubeconfig }
}

const rowsIn = (out: string): readonly Record<string, unknown>[] => JSON.parse(out).nodes

describe('kprobe nodes', () => {
  it('runs a command in the pod of each node, and prints one table', async () => {
    const { run, server } = await cluster([podOn('b'), podOn('a')])
    expect(await run('status')).toEqual({
      code: 0,
      err: '',
      out: [
        'NODE   POD        RESULT   DETAIL',
        'a      kprobe-a   ok       1.2.3: kprobe serves 3 Services on this node as configured',
        'b      kprobe-b   ok       1.2.3: kprobe serves 3 Services on this node as configured',
        '2 nodes: 2 ok, 0 differ, 0 did not answer',
        '',
      ].join('\n'),
    })
    expect(server.asked.map(({ container }) => container)).toEqual(['kprobe', 'kprobe'])
    expect(server.asked[0]?.command).toEqual(['kprobe', 'status', '--output=json'])
    expect(server.tokens).toEqual(new Set(['Bearer secret-token']))
  })

  it('exits 3 when some differ, and 1 when some did not answer, which counts more', async () => {
    const answers: Readonly<Record<string, ExecAnswer>> = {
      'kprobe-same': { stdout: '{"differences":[]}' },
      'kprobe-other': { stdout: '{"differences":[{},{}]}', code: 3 },
      'kprobe-failed': { stderr: 'first\nkprobe verify: no daemon answers\n', code: 1 },
      'kprobe-cut': { isCut: true },
      'kprobe-denied': { status: 403 },
      'kprobe-empty': { failure: 'container not found ("kprobe")' },
    }
    const nodes = ['same', 'other', 'failed', 'cut', 'denied', 'empty'].map(node => podOn(node))
    const { run } = await cluster(nodes, ({ pod }) => answers[pod] ?? {})
    const some = await run('verify', '--node=same,other', '-o', 'json')
    expect(some.code).toBe(3)
    expect(rowsIn(some.out)).toEqual([
      {
        node: 'other',
        pod: 'kprobe-other',
        result: 'differs',
        detail: '2 differences; kprobe verify names them',
      },
      { node: 'same', pod: 'kprobe-same', result: 'fine', detail: 'objects, daemon and kernel agree' },
    ])
    expect((await run('verify', '--node=same')).code).toBe(0)
    const all = await run('verify', '--all', '-o', 'json')
    expect(all.code).toBe(1)
    const details = rowsIn(all.out).map(({ node, detail }) => [node, detail])
    expect(Object.fromEntries(details)).toMatchObject({
      cut: 'the connection ended before the command did',
      denied: 'status 403: kprobe-denied is forbidden',
      empty: 'the command did not run: container not found ("kprobe")',
      failed: 'kprobe verify: no daemon answers',
    })
  })

  it('finds it in the pods of kube-proxy, and names those that still run kube-proxy', async () => {
    const pods = ['moved', 'other'].map(node => podOn(node, true, 'kube-proxy'))
    const absent = 'OCI runtime exec failed: exec: "kprobe": executable file not found in $PATH'
    const answer = ({ pod }: ExecAsked) => (pod === 'kube-proxy-moved' ? VERSION : { failure: absent })
    const { run, server } = await cluster(pods, answer, 'k8s-app=kube-proxy')
    const { code, out } = await run('status')
    expect(code).toBe(1)
    expect(out).toMatch(/^moved +kube-proxy-moved +ok +1\.2\.3: kprobe serves 3 Services/m)
    expect(out).toMatch(/^other .*UNKNOWN +the image of this pod has no command kprobe: it is kube-proxy's$/m)
    expect(server.asked.map(({ container }) => container)).toEqual(['kube-proxy', 'kube-proxy'])
    expect(await run('status', '--selector=k8s-app=kprobe')).toMatchObject({ code: 1, out: '' })
  })

  it('prints the worst problem of a node, and says which nodes have an older kprobe', async () => {
    const answers: Readonly<Record<string, ExecAnswer>> = {
      'kprobe-a': { stdout: statusOf('with 2 problems', ['no reply', 'refused']), code: 3 },
      'kprobe-b': { stderr: 'kprobe status: unix:///run/kprobe/relay.sock: connect ENOENT', code: 1 },
      'kprobe-c': { stdout: '{"version":"1.2.3"}' },
    }
    const { run } = await cluster([podOn('a'), podOn('b'), podOn('c')], ({ pod }) => answers[pod] ?? VERSION)
    const { code, out } = await run('status')
    expect(code).toBe(1)
    expect(out).toMatch(/^a .*DIFFERS +1\.2\.3: no reply; 1 more problem$/m)
    expect(out).toMatch(/^b .*UNKNOWN +an older kprobe runs there/m)
    expect(out).toMatch(/^c .*UNKNOWN +the answer is not the status of a node$/m)
  })

  it('names nodes without a pod, and pods that are not ready', async () => {
    const { run } = await cluster([podOn('a', false), { metadata: { name: 'unscheduled' }, spec: {} }])
    expect(await run('status', '--node=a,b')).toMatchObject({
      code: 1,
      out: expect.stringMatching(
        /^a .*DIFFERS +1\.2\.3: kprobe serves .*; the pod is not ready\nb +- +UNKNOWN +no pod of kprobe runs there\n/m,
      ),
    })
  })

  it('names nodes whose only pod ends, or is not scheduled', async () => {
    const ending = podOn('ending')
    const term = { matchFields: [{ key: 'metadata.name', operator: 'In', values: ['full'] }] }
    const required = { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: [term] } }
    const { run } = await cluster([
      podOn('a'),
      { ...podOn('a'), metadata: { name: 'kprobe-old', deletionTimestamp: '2026-01-01T00:00:00Z' } },
      { ...ending, metadata: { ...ending.metadata, deletionTimestamp: '2026-01-01T00:00:00Z' } },
      { metadata: { name: 'kprobe-new' }, spec: { affinity: { nodeAffinity: required } } },
      { metadata: { name: 'lost' }, spec: {} },
    ])
    const { code, out } = await run('status')
    expect(code).toBe(1)
    expect(out).toMatch(/^a +kprobe-a +ok /m)
    for (const node of ['ending', 'full', '\\(pod lost is not scheduled\\)'])
      expect(out).toMatch(new RegExp(`^${node} +- +UNKNOWN +no pod of kprobe runs there$`, 'm'))
    expect(out).toContain('4 nodes: 1 ok, 0 differ, 3 did not answer')
  })

  it('gives up on nodes that are silent or hang', async () => {
    const { run } = await cluster([podOn('a'), podOn('b'), podOn('c')], ({ pod }) =>
      pod === 'kprobe-c' ? VERSION : { [pod === 'kprobe-a' ? 'isSilent' : 'isHung']: true },
    )
    const { code, out } = await run('status', '--timeout=1')
    const late = 'UNKNOWN +no answer within 1 s'
    expect([code, out]).toEqual([1, expect.stringMatching(`a .*${late}\nb .*${late}\nc .* ok `)])
  })

  it('says what becomes of a connection on each node', async () => {
    const stdout = JSON.stringify({ answer: 'served: always 10.1.0.1:80' })
    const { run, server } = await cluster([podOn('a')], () => ({ stdout }))
    const { code, out } = await run('why', '--from=outside', '--to=svc/a/b')
    expect([code, out]).toEqual([0, expect.stringContaining('ok       served: always 10.1.0.1:80\n')])
    expect(server.asked[0]?.command.slice(1)).toEqual([
      ...['why', '--from=outside', '--to=svc/a/b', '--output=json'],
    ])
  })

  it('writes the bundle of each node, octet by octet', async () => {
    const bytes = Buffer.from(Array.from({ length: 300_000 }, (_, at) => (at * 31) & 255))
    const { run } = await cluster([podOn('a'), podOn('../b')], () => ({ stdout: bytes, stderr: 'a note' }))
    const { code, out } = await run('bundle', `--folder=${folder}`, '--redact')
    expect(code).toBe(1)
    expect(out).toContain('"../b" is not a node name')
    const path = join(folder, 'kprobe-bundle-a.tar.gz')
    expect([readFileSync(path).equals(bytes), statSync(path).mode & 0o777]).toEqual([true, 0o600])
    expect(readdirSync(folder).sort()).toEqual(['kprobe-bundle-a.tar.gz', 'kubeconfig'])
  })

  it('asks many nodes, page by page, and no more of them at once than it may', async () => {
    const nodes = Array.from({ length: 101 }, (_, at) => podOn(`node-${at}`))
    const { run, server } = await cluster(nodes)
    const { code, out } = await run('status', '--concurrency=7')
    expect([code, out.trimEnd().split('\n').at(-1)]).toEqual([
      0,
      '101 nodes: 101 ok, 0 differ, 0 did not answer',
    ])
    // A busy machine may not reach it.
    expect(server.most).toBeLessThanOrEqual(7)
    expect(server.most).toBeGreaterThan(1)
    expect(new Set(server.asked.map(({ pod }) => pod)).size).toBe(101)
  })

  it('ends when it is interrupted, and says which nodes it could not ask', async () => {
    const stop = new AbortController()
    const { kubeconfig, server } = await cluster([podOn('a'), podOn('b')], () => ({ isSilent: true }))
    const io = new FakeIo({ signal: stop.signal })
    const ended = command.run(['status', '--concurrency=1', `--kubeconfig=${kubeconfig}`], io)
    await eventually(() => server.running === 1)
    stop.abort('SIGINT')
    expect(await ended).toBe(1)
    expect(io.stdout).toMatch(/^a .*UNKNOWN +interrupted\nb .*UNKNOWN +interrupted\n/m)
  })

  it('keeps control characters of a node out of the terminal', async () => {
    const { run } = await cluster([podOn('a')], () => ({ stderr: 'x\u001b[2Jy', code: 1 }))
    expect((await run('status')).out).toContain('x\\u{1b}[2Jy')
  })

  it.each([
    [[], 'COMMAND: is missing; there are status, verify, why, top, bundle'],
    [['get'], '"get": no such argument; there are status, verify, why, top, bundle'],
    [['why', '--to=a'], '--from: is needed for why'],
    [['status', '--from=a'], '--from: is for why'],
    [['status', '--redact'], '--redact: is for bundle'],
    [['verify', '--sort-by=rate'], '--sort-by: is for top'],
    [['top', '--interval=100ms'], '--interval: "100ms" is not a duration (10s, 2m) from 200ms to '],
    [['status', '--all', '--node=a'], '--all: contradicts --node'],
    [['status', '--context=other'], 'there is no context "other"'],
  ])('%j is wrong usage', async (argv, message) => {
    const { run } = await cluster([podOn('a')])
    const ended = await run(...argv)
    expect([ended.code, ended.out]).toEqual([2, ''])
    expect(ended.err).toContain(message)
  })

  it('fails where no pod has the labels, and where no server answers', async () => {
    const { run, server } = await cluster([podOn('a')])
    expect(await run('status', '--selector=app=other')).toMatchObject({
      code: 1,
      err: expect.stringContaining('no pod with the labels "app=other" in namespace "kube-system"'),
    })
    await server.close()
    expect(await run('status')).toMatchObject({ code: 1, err: expect.stringContaining('kprobe nodes: ') })
  })
})

const TOP = {
  perSecond: 12.34,
  rejectsPerSecond: 2,
  table: { entries: 250, entriesMax: 1_000 },
  daemon: {
    mode: 'nftables',
    sourceAgeMs: 300,
    repairs: 4,
    quarantined: 0,
    commits: [{ time: '2026-01-01T10:20:30.000Z' }],
  },
  lost: 0,
  notices: [],
}
const away = { ...TOP, daemon: undefined, notices: ['no daemon answers at /run/kprobe.sock'] }
const failing = { ...TOP, daemon: { ...TOP.daemon, error: 'EPERM', quarantined: 2 } }

describe('kprobe nodes top', () => {
  const answers: Readonly<Record<string, ExecAnswer>> = {
    'kprobe-a': { stdout: JSON.stringify(TOP) },
    'kprobe-b': { stdout: JSON.stringify({ ...away, perSecond: 99 }) },
    'kprobe-c': { stdout: JSON.stringify(failing) },
    'kprobe-d': { stderr: 'kprobe: no such command: "top"', code: 2 },
    'kprobe-e': { stdout: '{"perSecond":"many","table":7,"daemon":{"commits":[3]}}' },
    'kprobe-f': { stdout: 'no JSON' },
  }
  const nodes = [...'abcdef'].map(node => podOn(node))

  it('prints one table over all nodes', async () => {
    const { run, server } = await cluster(nodes, ({ pod }) => answers[pod] ?? {})
    const { code, out } = await run('top', '--node=a,b,c,d')
    expect([code, out.split('\n').map(line => line.replace(/ +/g, ' '))]).toEqual([
      1,
      [
        'NODE NEW/S REJ/S TABLE SOURCE COMMIT REPAIRS ERRORS',
        'a 12.3 2.0 25.0 % 0.300s 10:20:30Z 4',
        'b 99.0 2.0 25.0 % - - - no daemon answers at /run/kprobe.sock',
        'c 12.3 2.0 25.0 % 0.300s 10:20:30Z 4 sync fails: EPERM; 2 quarantined',
        'd - - - - - - no answer: kprobe: no such command: "top"',
        '4 nodes: 1 ok, 2 differ, 1 did not answer',
        '',
      ],
    ])
    expect(server.asked[0]?.command).toEqual([
      ...['kprobe', 'top', '--once', '--limit=1', '--interval=1000ms', '--output=json'],
    ])
    expect(await run('top', '--node=a')).toMatchObject({ code: 0 })
    expect(await run('top', '--node=c')).toMatchObject({ code: 3 })
  })

  it('prints a document for scripts, sorted', async () => {
    const { run } = await cluster(nodes, ({ pod }) => answers[pod] ?? {})
    const { out } = await run('top', '--sort-by=rate', '-o', 'json')
    const rows = rowsIn(out)
    const results = ['b differs', 'a fine', 'c differs', 'd unknown', 'e fine', 'f unknown']
    expect(rows.map(({ node, result }) => `${node} ${result}`)).toEqual(results)
    expect(rows[1]).toMatchObject({
      ...{ pod: 'kprobe-a', mode: 'nftables', perSecond: 12.34, rejectsPerSecond: 2, entries: 250 },
      ...{ entriesMax: 1_000, sourceAgeMs: 300, lastCommit: '2026-01-01T10:20:30.000Z', repairs: 4 },
    })
    const errors = await run('top', '--sort-by=errors', '-o', 'json')
    expect(rowsIn(errors.out).map(({ node }) => node)).toEqual([...'dfbcae'])
  })
})
