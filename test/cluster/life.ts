import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { eventually } from '../support/patience.ts'
import type { Cluster } from './cluster.ts'
import { Kubectl } from './control-plane.ts'
import { EVENTS } from './life-events.ts'
import { clientObjects, NAMESPACE, PORT, serverObjects } from './life-objects.ts'
import type { Life, LifePart } from './life-steps.ts'
import type { Command, Namespaces, Place } from './namespaces.ts'
import { imageLike } from './pods.ts'
import { type RunningProxy, runningProxy } from './proxies.ts'
import type { Site } from './site.ts'
import { type Counts, type Flow, KINDS, type Kind } from './traffic.ts'

/*
 * A node's life, under traffic: clients in a pod, on a node and outside of the nodes send requests to Services while the
 * cluster does what clusters do. Whatever fails is counted.
 */

const COUNTED_MAX_MS = 30_000
/** Between events: what the last one has broken fails by then. */
const SETTLE_MS = 4_000

export interface LifeOptions {
  /** How often a deployment is rolled. */
  readonly rounds: number
  readonly previous: string | undefined
  /** Only events whose name has this pattern. */
  readonly only: string | undefined
  readonly program: string
  /** Gets the counts and logs. */
  readonly folder: string
  readonly progress: (words: string) => void
  readonly signal: AbortSignal
}

interface Counted {
  readonly sent: number
  readonly failed: number
}

/** What came of one event: by kind of traffic, requests and failures. */
export interface EventReport {
  readonly name: string
  readonly seconds: number
  readonly kinds: Readonly<Record<Kind, Counted>>
  /** Requests that may fail, and how many of them did: they are not in `kinds`, but for failures above what may fail. */
  readonly allowed: Counted
  /** The first failures, in words. */
  readonly failures: readonly string[]
}

export interface LifeReport extends RunningProxy {
  readonly events: readonly EventReport[]
}

/** Runs every event that this proxy can have, with traffic all the time. */
export async function runLife(cluster: Cluster, options: LifeOptions): Promise<LifeReport> {
  const { site, tools } = cluster
  const running = runningProxy(site)
  if (running === undefined) throw new Error('the cluster has no proxy; the command proxy starts one')
  const kubectl = new Kubectl(site, tools.namespaces, tools.binaries)
  const life: Life = {
    ...cluster,
    kubectl,
    rounds: options.rounds,
    previous: options.previous,
    program: options.program,
    signal: options.signal,
  }
  await startServers(life)
  const traffic = startTraffic(life, options)
  const end = async () => {
    await traffic.stop()
    kubectl.must(['delete', 'namespace', NAMESPACE, '--wait=false'])
  }
  try {
    const pattern = new RegExp(options.only ?? '')
    const chosen = EVENTS.filter(event => event.suits(running, life) && pattern.test(event.name))
    if (chosen.length === 0) throw new Error(`no event of this proxy has a name like ${options.only}`)
    const events: EventReport[] = []
    for (const event of chosen)
      for (let part: LifePart | undefined = event; part !== undefined; part = part.next)
        events.push(await runPart(life, part, traffic, options))
    await end()
    return { ...running, events }
  } catch (error) {
    // What an event has broken may fail here again, in other words.
    await end().catch(() => undefined)
    throw error
  }
}

/** A line for each event, and the first failures of those that have some. */
export function lifeTable({ events }: LifeReport): readonly string[] {
  const head = `${'event'.padEnd(14)}${[...KINDS, 'may fail'].map(each => each.padStart(16)).join('')}`
  return [
    head,
    ...events.flatMap(({ name, kinds, allowed, failures }) => [
      `${name.padEnd(14)}${[...KINDS.map(kind => kinds[kind]), allowed].map(cellOf).join('')}`,
      ...failures.slice(0, 5).map(words => `  ${words}`),
    ]),
  ]
}

function cellOf({ failed, sent }: Counted): string {
  return (sent === 0 && failed === 0 ? '-' : `${failed} of ${sent}`).padStart(16)
}

async function startServers({ site, tools, kubectl, signal }: Life): Promise<void> {
  const image = imageLike({ site, tools }, /\/agnhost:/)
  // Of an earlier run: objects in it would go with it.
  kubectl.must(['delete', 'namespace', NAMESPACE, '--ignore-not-found', '--wait=true'])
  kubectl.apply([...serverObjects(site, image), ...clientObjects(site, image)])
  for (const name of ['stable', 'rolled', 'client']) {
    signal.throwIfAborted()
    kubectl.must(['rollout', 'status', `deployment/${name}`, '--namespace', NAMESPACE, '--timeout=180s'])
  }
}

async function runPart(
  life: Life,
  event: LifePart,
  traffic: Traffic,
  { progress, signal }: LifeOptions,
): Promise<EventReport> {
  signal.throwIfAborted()
  const before = traffic.counts()
  const beganMs = performance.now()
  await event.run(life)
  await traffic.settled()
  const report = {
    ...difference(before, traffic.counts(), traffic.flows, flow => event.mayFail?.(flow, life) ?? 0),
    name: event.name,
  }
  const seconds = Math.round((performance.now() - beganMs) / 1000)
  const sum = (field: keyof Counted) => KINDS.reduce((all, kind) => all + report.kinds[kind][field], 0)
  const { allowed } = report
  const may = allowed.sent === 0 ? '' : `, ${allowed.failed} of ${allowed.sent} that may`
  progress(
    `${event.name}: ${event.what}: ${sum('failed')} of ${sum('sent')} requests failed${may}, ${seconds} s`,
  )
  return { ...report, seconds }
}

/** What the flows have added. Throws when one has sent nothing. Exported for its test. */
export function difference(
  before: Counts,
  after: Counts,
  flows: readonly Flow[],
  mayFail: (flow: Flow) => number,
): Omit<EventReport, 'name' | 'seconds'> {
  const parts = flows.map(flow => {
    const added = (field: keyof Counted) =>
      (after[flow.name]?.[field] ?? 0) - (before[flow.name]?.[field] ?? 0)
    const most = mayFail(flow)
    const failed = added('failed')
    const allowed = Math.min(failed, most)
    return { flow, sent: added('sent'), most, allowed, failed: failed - allowed }
  })
  const silent = parts.filter(({ sent }) => sent === 0).map(({ flow }) => flow.name)
  if (silent.length > 0) throw new Error(`nothing was sent from ${silent.join('; ')}`)
  const strict = parts.filter(({ most }) => most === 0)
  const lenient = parts.filter(({ most }) => most > 0)
  const sum = (counts: readonly number[]) => counts.reduce((all, one) => all + one, 0)
  const sentBy = (chosen: typeof parts) => sum(chosen.map(({ sent }) => sent))
  const ofKind = (kind: Kind): Counted => ({
    sent: sentBy(strict.filter(({ flow }) => flow.kind === kind)),
    failed: sum(parts.filter(({ flow }) => flow.kind === kind).map(({ failed }) => failed)),
  })
  const failures = parts
    .filter(({ failed }) => failed > 0)
    .flatMap(({ flow: { name } }) =>
      (after[name]?.failures ?? [])
        .filter(({ at }) => at > (before[name]?.failures.at(-1)?.at ?? 0))
        .map(({ at, error }) => `${new Date(at).toISOString()} ${name}: ${error}`),
    )
  return {
    kinds: {
      tcp: ofKind('tcp'),
      'keep-alive': ofKind('keep-alive'),
      lasting: ofKind('lasting'),
      udp: ofKind('udp'),
    },
    allowed: { sent: sentBy(lenient), failed: sum(parts.map(({ allowed }) => allowed)) },
    failures: failures.sort(),
  }
}

interface Traffic {
  readonly flows: readonly Flow[]
  /** A part of a second old at most. */
  counts(): Counts
  /** Resolves when every request has ended that was sent up to a moment after now. */
  settled(): Promise<void>
  stop(): Promise<void>
}

interface Client {
  readonly name: string
  readonly place: Place
  readonly command: (program: readonly string[]) => Command
  readonly flows: readonly Flow[]
}

function startTraffic(life: Life, { folder }: LifeOptions): Traffic {
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  const clients = clientsOf(life)
  const pathOf = (client: Client, what: string) => join(folder, `${client.name}.${what}`)
  const stop = join(folder, 'stop')
  for (const client of clients) {
    writeFileSync(pathOf(client, 'flows'), JSON.stringify(client.flows))
    const command = client.command([
      process.execPath,
      life.program,
      'traffic',
      pathOf(client, 'flows'),
      pathOf(client, 'counts'),
      stop,
    ])
    life.tools.namespaces.start(command, pathOf(client, 'log'), client.place)
  }
  const countsOf = (client: Client): Counts => {
    const file = pathOf(client, 'counts')
    return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : {}
  }
  const flows = clients.flatMap(each => each.flows)
  const counts = (): Counts => Object.assign({}, ...clients.map(countsOf))
  return {
    flows,
    counts,
    async settled() {
      await sleep(SETTLE_MS)
      const before = counts()
      const open = () => {
        life.signal.throwIfAborted()
        const now = counts()
        return flows
          .map(({ name }) => name)
          .filter(name => (now[name]?.ended ?? 0) < (before[name]?.sent ?? 0))
      }
      await eventually(() => open().length === 0, {
        limitMs: COUNTED_MAX_MS,
        stepMs: 200,
        describe: () => `requests do not end: ${open().join('; ')}`,
      })
    },
    async stop() {
      writeFileSync(stop, '')
      await eventually(() => clients.every(client => existsSync(`${pathOf(client, 'counts')}.done`)), {
        limitMs: COUNTED_MAX_MS,
        describe: () => `clients do not end: ${folder}`,
      })
    },
  }
}

/** A pod and its node at the ClusterIPs, and one outside at node ports of all nodes. */
function clientsOf({ site, tools, kubectl }: Life): readonly Client[] {
  const [first] = site.nodes
  if (first === undefined) throw new Error('the cluster has no node')
  const node = tools.namespaces.node(first.name)
  const direct = ([file = '', ...args]: readonly string[]): Command => ({ file, args })
  const podNamespace = namespaceOfClient(kubectl, tools.namespaces, node)
  const services = ['stable', 'rolled'].map(name => serviceOf(kubectl, name))
  const inside = (from: string) =>
    services.flatMap(({ name, addresses }) =>
      addresses.flatMap(host => flowsTo({ from, service: name, host, tcp: PORT.http, udp: PORT.udp })),
    )
  const outside = services.flatMap(({ name, nodePorts: [tcp = 0, udp = 0] }) =>
    site.nodes.flatMap(({ addresses }) =>
      addresses.flatMap(host => flowsTo({ from: 'outside', service: name, host, tcp, udp })),
    ),
  )
  return [
    {
      name: 'pod',
      place: node,
      command: program => ({ file: 'ip', args: ['netns', 'exec', podNamespace, ...program] }),
      flows: [...inside('pod'), ...dnsFlows(site, 'pod')],
    },
    { name: 'node', place: node, command: direct, flows: [...inside('node'), ...dnsFlows(site, 'node')] },
    { name: 'outside', place: tools.namespaces.controlPlane, command: direct, flows: outside },
  ]
}

function flowsTo({
  from,
  service,
  host,
  tcp,
  udp,
}: {
  readonly from: string
  readonly service: string
  readonly host: string
  readonly tcp: number
  readonly udp: number
}): readonly Flow[] {
  // Connections to pods that go break with them, whatever the proxy does.
  const kinds = service === 'rolled' ? KINDS.filter(kind => kind === 'tcp' || kind === 'udp') : KINDS
  return kinds.map(kind => ({
    name: `${from} to ${service} at ${host}, ${kind}`,
    kind,
    host,
    port: kind === 'udp' ? udp : tcp,
    server: `${service}-`,
  }))
}

/** To the cluster's DNS, for the name of a Service. */
function dnsFlows({ subnets }: Site, from: string): readonly Flow[] {
  const host = subnets[0]?.dns ?? ''
  const question = `stable.${NAMESPACE}.svc.cluster.local`
  return [{ name: `${from} to kube-dns at ${host}, udp`, kind: 'udp', host, port: 53, server: '', question }]
}

interface FoundService {
  readonly name: string
  readonly addresses: readonly string[]
  /** TCP, then UDP. */
  readonly nodePorts: readonly number[]
}

function serviceOf(kubectl: Kubectl, name: string): FoundService {
  const { spec }: { spec: { clusterIPs: string[]; ports: { nodePort: number }[] } } = JSON.parse(
    kubectl.must(['get', 'service', name, '--namespace', NAMESPACE, '--output', 'json']),
  )
  return { name, addresses: spec.clusterIPs, nodePorts: spec.ports.map(({ nodePort }) => nodePort) }
}

/** The network namespace that has the address of the client's pod. */
function namespaceOfClient(kubectl: Kubectl, namespaces: Namespaces, place: Place): string {
  const selected = ['get', 'pods', '--namespace', NAMESPACE, '--selector', 'app=client']
  const address = kubectl.must([...selected, '--output', 'jsonpath={.items[0].status.podIP}'])
  const names = namespaces
    .must({ file: 'ls', args: ['/run/netns'] }, { place })
    .split('\n')
    .filter(Boolean)
  const found = names.find(name =>
    namespaces
      .must({ file: 'ip', args: ['-netns', name, '-brief', 'address'] }, { place })
      .includes(` ${address}/`),
  )
  if (found === undefined)
    throw new Error(`no network namespace has the address ${address} of the client's pod`)
  return found
}
