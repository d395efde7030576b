import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { parseAllDocuments } from 'yaml'
import { COMMAND, type Daemon, Daemons } from '../support/daemon.ts'
import { eventually } from '../support/patience.ts'
import { isObject, type KubeObject } from '../support/reference/api.ts'
import { BARE_USER, ControlPlane } from '../support/reference/control-plane.ts'
import { Program } from '../support/reference/process.ts'
import { openInlet, type RelayHalf } from '../support/reference/relay.ts'

/*
 * A cluster with a relay starts from nothing, in every order of API server, relay and node: a real API server, which reviews the
 * tokens of the nodes, and processes in network namespaces of their own. Then relay and nodes of another version.
 */

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
/** The first version with a relay. */
const FORMER_COMMIT = '529bafed'
const CLUSTER_IP = '172.30.77.7'

const daemons = new Daemons()
const relays: Program[] = []
const inlets: RelayHalf[] = []
let plane: ControlPlane
let isDown = false
let tokens = 0

beforeAll(async () => {
  plane = await ControlPlane.start()
  // Who dials the port of a server that is away may get it for its own end, and keeps the server from coming back.
  writeFileSync('/proc/sys/net/ipv4/ip_local_reserved_ports', String(plane.port))
  for (const file of ['base/rbac.yaml', 'components/relay/rbac.yaml'])
    for (const object of documents(`deploy/kubernetes/${file}`)) await plane.api.put(object)
  await grantRelay()
  await plane.api.put({
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: 'shop', namespace: 'default' },
    spec: { clusterIP: CLUSTER_IP, ports: [{ port: 80 }] },
  })
})

afterEach(async () => {
  await daemons.end()
  for (const relay of relays.splice(0)) await relay.stop('SIGKILL')
  for (const inlet of inlets.splice(0)) await inlet.close()
  if (isDown) await comeUp()
})

afterAll(async () => {
  await plane?.stop()
})

function documents(path: string): readonly KubeObject[] {
  return parseAllDocuments(readFileSync(join(ROOT, path), 'utf8')).flatMap(document => {
    const object: unknown = document.toJS()
    return isObject(object) ? [object] : []
  })
}

/** The rights of the component alone, for a user of the test: relays of clusters are ServiceAccounts. */
async function grantRelay(): Promise<void> {
  const subjects = [{ kind: 'User', name: BARE_USER, apiGroup: 'rbac.authorization.k8s.io' }]
  for (const object of documents('deploy/kubernetes/components/relay/rbac.yaml'))
    if (object.kind === 'ClusterRoleBinding') await plane.api.put({ ...object, subjects })
}

async function goDown(): Promise<void> {
  await plane.stopServer()
  isDown = true
}

async function comeUp(): Promise<void> {
  await plane.startServer()
  isDown = false
}

/** As kubelet gets one: for a pod, where one is named. */
async function writeToken(account: string, audience = 'kprobe-relay', pod?: string): Promise<string> {
  const boundObjectRef = pod === undefined ? undefined : { apiVersion: 'v1', kind: 'Pod', name: pod }
  const { body } = await plane.api.send(
    'POST',
    `/api/v1/namespaces/kube-system/serviceaccounts/${account}/token`,
    {
      apiVersion: 'authentication.k8s.io/v1',
      kind: 'TokenRequest',
      spec: { audiences: [audience], expirationSeconds: 3_600, boundObjectRef },
    },
  )
  const status: unknown = isObject(body) ? body.status : undefined
  if (typeof status !== 'object' || status === null || !('token' in status)) throw new Error('no token')
  const file = join(plane.folder, `token-${tokens++}`)
  writeFileSync(file, String(status.token))
  return file
}

const socket = (name: string): string => `unix://${plane.folder}/${name}.sock`

function startRelay(name: string, { command = COMMAND, flags = TOKENS }: Partial<RelayStart> = {}): Program {
  const relay = new Program({
    name: 'relay',
    file: process.execPath,
    args: [
      command,
      'relay',
      `--listen=${socket(name)}`,
      `--kubeconfig=${plane.kubeconfig('bare')}`,
      ...flags,
    ],
    log: join(plane.folder, `${name}.log`),
  })
  relays.push(relay)
  return relay
}

interface RelayStart {
  readonly command: string
  readonly flags: readonly string[]
}

const TOKENS = ['--token-service-accounts=kube-system/kprobe']

interface NodeStart {
  readonly relay: string
  readonly tokenFile: string
  readonly fallsBack: boolean
  readonly command: string
  readonly name: string
}

/** A node in a network namespace of its own, from which only unix sockets lead out, and a way to the API server. */
async function startNode({
  relay,
  tokenFile = '',
  fallsBack = true,
  command = COMMAND,
  name,
}: Partial<NodeStart>): Promise<Daemon> {
  const daemon = daemons.start({
    source: { kind: 'kube', kubeconfig: plane.kubeconfig('proxy') },
    wrapper: ['unshare', '-n', 'sh', '-c', 'ip link set lo up; exec "$@"', 'sh'],
    command,
    args: [
      `--source=relay:${socket(relay ?? '')}`,
      ...(fallsBack ? ['--relay-fallback=kube'] : []),
      ...(tokenFile === '' ? [] : [`--relay-token-file=${tokenFile}`]),
      ...(name === undefined ? [] : [`--hostname-override=${name}`]),
    ],
  })
  // Its namespace is there, with its loopback interface.
  await daemon.until(() => daemon.records.length > 0)
  inlets.push(await openInlet(daemon.pid, { listen: { port: plane.port }, dial: plane.way }))
  return daemon
}

/** The kernel of the node has the Service of the cluster. */
async function serves(daemon: Daemon, text = CLUSTER_IP): Promise<void> {
  await daemon.synced(120_000)
  const dump = () =>
    spawnSync('nsenter', ['-t', String(daemon.pid), '-n', process.execPath, COMMAND, 'dump'], {
      encoding: 'utf8',
    })
  await eventually(() => dump().stdout.includes(text), { describe: () => JSON.stringify(dump()) })
}

function listsOf(daemon: Daemon): readonly string[] {
  const script = "fetch('http://127.0.0.1:10249/metrics').then(async its => console.log(await its.text()))"
  const { stdout } = spawnSync('nsenter', ['-t', String(daemon.pid), '-n', process.execPath, '-e', script], {
    encoding: 'utf8',
  })
  return stdout.split('\n').filter(line => line.startsWith('kprobe_source_lists_total{'))
}

const isDirect = (daemon: Daemon): boolean => daemon.said('reading from the API server').length > 0

test('F202: a cluster comes up where nodes and relays are there before the API server', async () => {
  const tokenFile = await writeToken('kprobe')
  await goDown()
  const first = await startNode({ relay: 'a', tokenFile, fallsBack: false })
  await first.logged('no relay answers')
  startRelay('a')
  const second = await startNode({ relay: 'a', tokenFile, fallsBack: false })
  await second.logged('no relay answers')
  await comeUp()
  const third = await startNode({ relay: 'a', tokenFile, fallsBack: false })
  for (const node of [first, second, third]) await serves(node)
})

test('F202: a cluster comes up where the relay comes last, or has no certificate yet', async () => {
  const tokenFile = await writeToken('kprobe')
  await goDown()
  const first = await startNode({ relay: 'b', tokenFile })
  await first.logged('no relay answers')
  await comeUp()
  const second = await startNode({ relay: 'b', tokenFile })
  for (const node of [first, second]) await serves(node)
  expect([first, second].map(isDirect)).toEqual([true, true])
  startRelay('b')
  const third = await startNode({ relay: 'b', tokenFile })
  await serves(third)
  expect(isDirect(third)).toBe(false)
})

test('F200: the API server refuses tokens of others, and those that are not for relays', async () => {
  startRelay('c')
  // A node says once why no relay answers.
  await eventually(() => existsSync(`${plane.folder}/c.sock`))
  const wrong = await startNode({
    relay: 'c',
    tokenFile: await writeToken('kprobe', 'https://lab'),
    fallsBack: false,
  })
  await wrong.logged('the API server does not accept the token')
  const other = await startNode({ relay: 'c', tokenFile: await writeToken('kprobe-relay'), fallsBack: false })
  await other.logged('system:serviceaccount:kube-system:kprobe-relay may not read')
})

test('F193: the API server names the node of a token that is bound to a pod, and its report counts', async () => {
  for (const name of ['bound', 'loose'])
    await plane.api.put({ apiVersion: 'v1', kind: 'Node', metadata: { name } })
  await plane.api.put({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'kprobe-bound', namespace: 'kube-system' },
    spec: {
      serviceAccountName: 'kprobe',
      nodeName: 'bound',
      containers: [{ name: 'kprobe', image: 'kprobe' }],
    },
  })
  startRelay('e')
  const tokenFile = await writeToken('kprobe', 'kprobe-relay', 'kprobe-bound')
  const loose = await writeToken('kprobe')
  for (const [name, file] of [
    ['bound', tokenFile],
    ['loose', loose],
    // It poses as another one.
    ['loose', tokenFile],
  ] as const)
    await serves(await startNode({ relay: 'e', tokenFile: file, fallsBack: false, name }))
  const asked = ['status', `--relay=${socket('e')}`, `--relay-token-file=${loose}`, '-o', 'json']
  const status = () => spawnSync(process.execPath, [COMMAND, ...asked], { encoding: 'utf8' }).stdout
  const says = (text: string, node: string, state: string): boolean =>
    JSON.parse(text || '{}').nodes?.some((each: KubeObject) => each.node === node && each.state === state)
  await eventually(() => says(status(), 'bound', 'holds'), { describe: status })
  expect(says(status(), 'loose', 'silent')).toBe(true)
})

/** The command of the former version, built with the packages of this one. */
function buildFormer(): string {
  const tree = join(ROOT, '.cache/former', FORMER_COMMIT)
  if (existsSync(join(tree, 'dist/kprobe.mjs'))) return join(tree, 'dist/kprobe.mjs')
  rmSync(tree, { recursive: true, force: true })
  mkdirSync(tree, { recursive: true })
  const archive = execFileSync('git', ['archive', FORMER_COMMIT], { cwd: ROOT, maxBuffer: 1 << 28 })
  execFileSync('tar', ['-x', '-C', tree], { input: archive })
  symlinkSync(join(ROOT, 'node_modules'), join(tree, 'node_modules'))
  for (const script of ['native/build.mjs', 'deploy/build.mjs'])
    execFileSync(process.execPath, [script], { cwd: tree, stdio: ['ignore', 'ignore', 'pipe'] })
  return join(tree, 'dist/kprobe.mjs')
}

const hasHistory = spawnSync('git', ['cat-file', '-e', FORMER_COMMIT], { cwd: ROOT }).status === 0

test.skipIf(!hasHistory)(
  'F203: relays and nodes are upgraded in either order, and resume at the other version',
  async () => {
    const former = buildFormer()
    const old = startRelay('d', { command: former, flags: [] })
    const nodes = [
      await startNode({ relay: 'd', fallsBack: false }),
      await startNode({ relay: 'd', fallsBack: false, command: former }),
    ]
    for (const node of nodes) await serves(node)
    const before = nodes.map(listsOf)
    expect(before[0]?.length).toBeGreaterThan(3)
    await old.stop()
    startRelay('d', { flags: [] })
    await plane.api.put({
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { name: 'later', namespace: 'default' },
      spec: { clusterIP: '172.30.77.8', ports: [{ port: 80 }] },
    })
    for (const node of nodes) await serves(node, '172.30.77.8')
    // Both go on from their revision: none of them lists again.
    expect(nodes.map(listsOf)).toEqual(before)
  },
)
