import { eventually } from '../support/patience.ts'
import { lastNode } from './cluster.ts'
import { NAMESPACE, PORT, serverPod } from './life-objects.ts'
import { isKprobe, type Life, type LifeEvent } from './life-steps.ts'
import type { Answers, Question } from './many-clients.ts'
import { imageLike } from './pods.ts'
import type { NodePlan, Site, Subnets } from './site.ts'

/*
 * A Service with maglev, asked by many clients outside through the node port of every node (docs/balance.md).
 */

const NAME = 'balanced'
const OBJECT = ['--namespace', NAMESPACE] as const
const CLIENTS = 200
/** Nine endpoints, and eight without one, have tables of one size: across a line of sizes nearly all clients move. */
const PODS_OF_A_NODE = 3
const AGREED_MAX_MS = 90_000
/** Of the clients of endpoints that stay: 3 % of the slots move, and so few clients are no exact measure of them. */
const MOVED_MAX = 0.1
const WEIGHT = 3
/** A share as 200 clients of each family show it. */
const SHARE_MAX_ERROR = 0.1

export const BALANCE: readonly LifeEvent[] = [
  {
    name: 'balance',
    what: 'clients of a maglev Service reach the same endpoint through each node; one goes; weights by zone',
    suits: (proxy, { site }) =>
      isKprobe(proxy) && proxy.mode === 'nftables' && site.nodes.length > 1 && site.parameters.zones > 1,
    run: async life => {
      try {
        life.kubectl.apply(balancedObjects(life))
        life.kubectl.must([
          'wait',
          '--for=condition=Ready',
          'pods',
          ...OBJECT,
          `-lapp=${NAME}`,
          '--timeout=120s',
        ])
        clientAddresses(life, 'add', [])
        await judge(life)
      } finally {
        // Without some of them, the others go as well.
        clientAddresses(life, 'delete', ['-force'])
        life.kubectl.must(['delete', 'service,pods', ...OBJECT, `-lapp=${NAME}`, '--wait=false'])
      }
    },
  },
]

/** By family: the name of the endpoint of each client. */
type Choice = readonly (readonly string[])[]

async function judge(life: Life): Promise<void> {
  const { site, kubectl } = life
  const pods = podsOf(site)
  const [first] = pods
  const last = lastNode(site)
  if (first === undefined) throw new Error('the cluster has no node')
  const before = await choiceOf(life, choice => lacking(choice, namesOf(pods)))

  kubectl.must(['delete', 'pod', first.name, ...OBJECT, '--wait=false'])
  const after = await choiceOf(life, choice => found(choice, [first.name]))
  requireFewMoved({ before, after, gone: first.name })

  const left = pods.slice(1)
  const ofZone = left.filter(({ node }) => node.zone === last.zone)
  weigh(life, `zone=${last.zone}:0`)
  await choiceOf(life, choice => found(choice, namesOf(ofZone)))

  weigh(life, `zone=${last.zone}:${WEIGHT}`)
  const wanted = (WEIGHT * ofZone.length) / (WEIGHT * ofZone.length + left.length - ofZone.length)
  await choiceOf(life, choice => {
    const share = shareOf(choice, namesOf(ofZone))
    return Math.abs(share - wanted) < SHARE_MAX_ERROR
      ? undefined
      : `${last.zone} has ${share.toFixed(2)} of the clients, not ${wanted.toFixed(2)}`
  })
}

/** Waits until all nodes choose the same endpoint for each client, and `problem` gives nothing. */
async function choiceOf(life: Life, problem: (choice: Choice) => string | undefined): Promise<Choice> {
  let choice: Choice = []
  let words: string | undefined
  await eventually(
    () => {
      life.signal.throwIfAborted()
      const answers = life.site.subnets.map(subnets => answersIn(life, subnets))
      choice = answers.map(([one = []]) => one)
      words = answers.map(disagreement).find(Boolean) ?? problem(choice)
      return words === undefined
    },
    { limitMs: AGREED_MAX_MS, stepMs: 500, describe: () => `balance: ${words}` },
  )
  return choice
}

/** Of the clients of one family, through each node. */
function answersIn({ site, tools, kubectl, program }: Life, subnets: Subnets): Answers {
  const path = 'jsonpath={.spec.ports[0].nodePort}'
  const port = Number(kubectl.must(['get', 'service', NAME, ...OBJECT, '--output', path]))
  const question: Question = {
    clients: clientsOf(subnets),
    targets: site.nodes.map(({ index }) => ({ host: subnets.node(index), port })),
  }
  const command = { file: process.execPath, args: [program, 'ask'] }
  return JSON.parse(tools.namespaces.must(command, { input: JSON.stringify(question) }))
}

function disagreement(answers: Answers): string | undefined {
  const [first = []] = answers
  const silent = answers.flat().filter(name => name === '').length
  if (silent > 0) return `${silent} of ${answers.flat().length} requests had no answer`
  const differing = first.filter((name, at) => answers.some(row => row[at] !== name)).length
  return differing === 0
    ? undefined
    : `nodes choose different endpoints for ${differing} of ${first.length} clients`
}

function lacking(choice: Choice, names: readonly string[]): string | undefined {
  const absent = choice.flatMap(row => names.filter(name => !row.includes(name)))
  return absent.length === 0 ? undefined : `no client reaches ${absent.join(', ')}`
}

function found(choice: Choice, names: readonly string[]): string | undefined {
  const reached = choice.flat().filter(name => names.includes(name)).length
  return reached === 0 ? undefined : `${reached} clients still reach ${names.join(', ')}`
}

function shareOf(choice: Choice, names: readonly string[]): number {
  const all = choice.flat()
  return all.filter(name => names.includes(name)).length / all.length
}

/** The clients of the endpoint that goes are divided among the others, which keep theirs. */
function requireFewMoved({
  before,
  after,
  gone,
}: {
  readonly before: Choice
  readonly after: Choice
  readonly gone: string
}): void {
  const pairs = before.flat().map((old, at) => ({ old, now: after.flat()[at] }))
  const others = pairs.filter(({ old }) => old !== gone)
  const moved = others.filter(({ old, now }) => old !== now).length
  if (moved > MOVED_MAX * others.length)
    throw new Error(`${moved} of ${others.length} clients of endpoints that stay have moved`)
  const heirs = new Set(pairs.filter(({ old }) => old === gone).map(({ now }) => now))
  if (heirs.size < 2) throw new Error(`all clients of ${gone} went to ${[...heirs].join()}`)
}

function weigh({ kubectl }: Life, weights: string): void {
  kubectl.must(['annotate', 'service', NAME, ...OBJECT, '--overwrite', `kprobe.io/weights=${weights}`])
}

/** The control plane has the addresses of all clients beside its own, and nodes answer by way of it. */
function clientAddresses({ site, tools }: Life, verb: 'add' | 'delete', flags: readonly string[]): void {
  const lines = site.subnets.flatMap(subnets =>
    clientsOf(subnets).map(client => `address ${verb} ${client}/${subnets.hostBits} dev lo`),
  )
  const command = { file: 'ip', args: [...flags, '-batch', '-'] }
  const options = { input: lines.join('\n') }
  if (verb === 'add') tools.namespaces.must(command, options)
  else tools.namespaces.run(command, options)
}

function clientsOf({ client }: Subnets): readonly string[] {
  return Array.from({ length: CLIENTS }, (_, at) => client.replace(/1$/, String(10 + at)))
}

interface PodPlan {
  readonly name: string
  readonly node: NodePlan
}

function podsOf({ nodes }: Site): readonly PodPlan[] {
  return nodes.flatMap(node =>
    Array.from({ length: PODS_OF_A_NODE }, (_, at) => ({ name: `${NAME}-${node.name}-${at}`, node })),
  )
}

function namesOf(pods: readonly PodPlan[]): readonly string[] {
  return pods.map(({ name }) => name)
}

/** Pods that nothing replaces. */
function balancedObjects({ site, tools }: Life): readonly object[] {
  const image = imageLike({ site, tools }, /\/agnhost:/)
  const labels = { app: NAME }
  const metadata = { namespace: NAMESPACE, labels }
  return [
    ...podsOf(site).map(({ name, node }) => ({
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { ...metadata, name },
      spec: { ...serverPod(NAME, image), nodeName: node.name },
    })),
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: { ...metadata, name: NAME, annotations: { 'kprobe.io/balance': 'maglev' } },
      spec: {
        type: 'NodePort',
        selector: labels,
        ipFamilyPolicy: site.subnets.length > 1 ? 'RequireDualStack' : 'SingleStack',
        ports: [{ port: PORT.http }],
      },
    },
  ]
}
