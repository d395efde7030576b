import { join } from 'node:path'
import { eventually } from '../support/patience.ts'
import { lastNode } from './cluster.ts'
import {
  addressesOf,
  isServedOn,
  nodesOfNewcomers,
  requireConnected,
  sendNewcomers,
} from './life-newcomers.ts'
import { byLastNode, isKprobe, type Life, type LifeEvent, proxyOf } from './life-steps.ts'
import { cleanUp, startOne, stopOne } from './proxies.ts'

/*
 * A node with a startup taint, as docs/node-start.md says: its pods wait until kprobe says in the condition of the Node that it
 * serves. The node is one that runs; its proxy begins with nothing in the kernel and no condition, as after a start.
 */

const TAINT = 'readiness.k8s.io/service-proxy'
const CONDITION = 'ServiceProxyReady'
const READY_MAX_MS = 60_000

export const READINESS: readonly LifeEvent[] = [
  {
    name: 'readiness',
    what: 'a tainted node gets its proxy, its condition, and a pod that connects at once',
    suits: proxy => isKprobe(proxy) && proxy.form === 'process',
    run: async life => {
      allowConditions(life)
      const failures: string[] = []
      for (let round = 0; round < life.rounds; round++) {
        life.signal.throwIfAborted()
        await startTainted(life, round === 0).catch((error: Error) => failures.push(error.message))
      }
      if (failures.length > 0)
        throw new Error(`${failures.length} of ${life.rounds} starts of a node failed: ${failures[0]}`)
    },
    mayFail: byLastNode,
  },
]

/** What the component node-condition gives kprobe in pods, and here the user of its certificate. */
function allowConditions({ kubectl, tools }: Life): void {
  kubectl.must(['apply', '-f', join(tools.root, 'deploy/kubernetes/components/node-condition/rbac.yaml')])
  const group = 'rbac.authorization.k8s.io'
  kubectl.apply([
    {
      apiVersion: `${group}/v1`,
      kind: 'ClusterRoleBinding',
      metadata: { name: 'kprobe:node-condition-of-processes' },
      roleRef: { apiGroup: group, kind: 'ClusterRole', name: 'kprobe:node-condition' },
      subjects: [{ apiGroup: group, kind: 'User', name: 'system:kube-proxy' }],
    },
  ])
}

async function startTainted(life: Life, isFirst: boolean): Promise<void> {
  const { site, tools, kubectl } = life
  const node = lastNode(site)
  const running = proxyOf(life)
  kubectl.must(['taint', 'node', node.name, `${TAINT}=pending:NoSchedule`, '--overwrite'])
  await stopOne(node, running, tools)
  cleanUp(node, running, tools)
  const nothing = JSON.stringify({ status: { conditions: [{ type: CONDITION, $patch: 'delete' }] } })
  kubectl.must(['patch', 'node', node.name, '--subresource=status', '--type=strategic', '--patch', nothing])
  // Otherwise a first connection shows nothing.
  if (isFirst && isServedOn(life, node, addressesOf(life)[0]))
    throw new Error(`a Service answers on ${node.name}, which has no proxy`)
  sendNewcomers(life, node, 1)
  startOne(site, running, { tools, node, more: { nodeCondition: CONDITION } })
  const path = `jsonpath={.status.conditions[?(@.type=="${CONDITION}")].status}`
  await eventually(() => kubectl.must(['get', 'node', node.name, '--output', path]) === 'True', {
    limitMs: READY_MAX_MS,
    stepMs: 50,
    describe: () => `kprobe does not set ${CONDITION} of ${node.name}`,
  })
  const scheduled = nodesOfNewcomers(life)
  // What node-readiness-controller does.
  kubectl.must(['taint', 'node', node.name, `${TAINT}-`])
  await requireConnected(life, 1)
  if (scheduled !== '') throw new Error(`a pod did not wait for the taint of ${scheduled} to go`)
}
