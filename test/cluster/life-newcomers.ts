import { eventually } from '../support/patience.ts'
import { firstConnection, NAMESPACE, PORT } from './life-objects.ts'
import type { Life } from './life-steps.ts'
import type { NodePlan } from './site.ts'

/*
 * Pods that start on a node and connect to a Service at once, by each of its addresses in turn.
 */

const ENDED_MAX_MS = 120_000
const SELECTED = ['--namespace', NAMESPACE, '--selector', 'app=newcomer'] as const

export function sendNewcomers(life: Life, node: NodePlan, count: number): void {
  const { kubectl } = life
  const addresses = addressesOf(life)
  const image = kubectl.must([
    ...['get', 'deployment', 'stable', '--namespace', NAMESPACE],
    ...['--output', 'jsonpath={.spec.template.spec.containers[0].image}'],
  ])
  const pods = Array.from({ length: count }, (_, at) =>
    firstConnection(`newcomer-${at}`, {
      node: node.name,
      image,
      host: addresses[at % addresses.length] ?? '',
    }),
  )
  kubectl.apply(pods)
}

/** Of the Service that they connect to. */
export function addressesOf({ kubectl }: Life): readonly string[] {
  const service = ['get', 'service', 'stable', '--namespace', NAMESPACE]
  return kubectl.must([...service, '--output', 'jsonpath={.spec.clusterIPs[*]}']).split(' ')
}

/** Whether the Service at this address answers a process of the node. */
export function isServedOn({ tools: { namespaces } }: Life, node: NodePlan, host = ''): boolean {
  const url = `http://${host.includes(':') ? `[${host}]` : host}:${PORT.http}/hostname`
  const { status } = namespaces.run(
    { file: 'curl', args: ['--silent', '--fail', '--max-time', '2', url] },
    { place: namespaces.node(node.name) },
  )
  return status === 0
}

function phasesOfNewcomers({ kubectl }: Life): readonly string[] {
  return kubectl
    .must(['get', 'pods', ...SELECTED, '--output', 'jsonpath={.items[*].status.phase}'])
    .split(' ')
}

/** Those that the scheduler has chosen: none while every pod waits. */
export function nodesOfNewcomers({ kubectl }: Life): string {
  return kubectl.must(['get', 'pods', ...SELECTED, '--output', 'jsonpath={.items[*].spec.nodeName}']).trim()
}

/** Waits until all have ended, and removes them. Throws when one of them has had no answer. */
export async function requireConnected(life: Life, count: number): Promise<void> {
  const { kubectl } = life
  const hasEnded = (phase: string) => phase === 'Succeeded' || phase === 'Failed'
  await eventually(() => phasesOfNewcomers(life).filter(hasEnded).length === count, {
    limitMs: ENDED_MAX_MS,
    stepMs: 500,
    describe: () => `pods have not ended: ${kubectl.must(['describe', 'pods', ...SELECTED]).slice(-2_000)}`,
  })
  const failed = phasesOfNewcomers(life).filter(phase => phase === 'Failed').length
  const words = failed === 0 ? '' : kubectl.must(['logs', ...SELECTED])
  kubectl.must(['delete', 'pods', '--grace-period=1', ...SELECTED])
  if (failed > 0) throw new Error(`${failed} of ${count} pods had no first connection: ${words}`)
}
