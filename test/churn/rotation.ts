import type { ApiObject } from '../../src/source/kube/wire/tables.ts'
import type { Random } from '../support/apiserver/random.ts'
import type { PodAddresses } from './pods.ts'

/** A Service of the run: some of its backends live for ever, the others come and go. */
export interface Rotated {
  readonly name: string
  readonly protocol: 'TCP' | 'UDP'
  readonly address: string
  readonly lasting: readonly string[]
  readonly passing: readonly string[]
}

const NAMESPACE = 'churn'
export const SERVICE_PORT = 80
export const POD_PORT = 8080

type Stage = 'out' | 'in' | 'terminating' | 'draining' | 'dead'

/** How long a pod that is no endpoint any more still answers, and how long its address then answers to nobody. */
const DRAIN_MS = 3_000
const DEAD_MS = 1_000

interface Pod {
  readonly address: string
  stage: Stage
  sinceMs: number
}

/** The pods of one Service through their lives, one step at a time. */
export class Rotation {
  readonly service: Rotated
  readonly #pods: readonly Pod[]
  readonly #addresses: PodAddresses
  readonly #random: Random

  constructor(service: Rotated, addresses: PodAddresses, random: Random) {
    this.service = service
    this.#addresses = addresses
    this.#random = random
    this.#pods = service.passing.map(address => ({ address, stage: 'out', sinceMs: 0 }))
    for (const address of [...service.lasting, ...service.passing]) addresses.revive(address)
  }

  /** Lets pods die that were drained, and others come to life. The API knows nothing of either. */
  pass(nowMs: number): void {
    for (const pod of this.#pods) {
      const forMs = nowMs - pod.sinceMs
      if (pod.stage === 'draining' && forMs >= DRAIN_MS) {
        this.#addresses.kill(pod.address)
        become(pod, 'dead', nowMs)
      } else if (pod.stage === 'dead' && forMs >= DEAD_MS) {
        this.#addresses.revive(pod.address)
        become(pod, 'out', nowMs)
      }
    }
  }

  /** One endpoint is added, begins to terminate, or goes. False when there is none to do that to. */
  step(nowMs: number): boolean {
    const able = this.#pods.filter(
      ({ stage }) => stage === 'out' || stage === 'in' || stage === 'terminating',
    )
    if (able.length === 0) return false
    const pod = this.#random.pick(able)
    if (pod.stage === 'out') become(pod, 'in', nowMs)
    else if (pod.stage === 'in' && this.#random.chance(0.5)) become(pod, 'terminating', nowMs)
    else become(pod, 'draining', nowMs)
    return true
  }

  serviceObject(): ApiObject {
    const { name, protocol, address } = this.service
    return {
      kind: 'Service',
      apiVersion: 'v1',
      metadata: { namespace: NAMESPACE, name },
      spec: {
        clusterIP: address,
        clusterIPs: [address],
        ipFamilies: ['IPv4'],
        ports: [{ name: 'p', protocol, port: SERVICE_PORT, targetPort: POD_PORT }],
      },
    }
  }

  /** As it is now. */
  sliceObject(): ApiObject {
    const { name, protocol, lasting } = this.service
    const passing = this.#pods.filter(({ stage }) => stage === 'in' || stage === 'terminating')
    return {
      kind: 'EndpointSlice',
      apiVersion: 'discovery.k8s.io/v1',
      metadata: {
        namespace: NAMESPACE,
        name: `${name}-1`,
        labels: { 'kubernetes.io/service-name': name },
      },
      addressType: 'IPv4',
      ports: [{ name: 'p', protocol, port: POD_PORT }],
      endpoints: [
        ...lasting.map(address => endpoint(address, false)),
        ...passing.map(({ address, stage }) => endpoint(address, stage === 'terminating')),
      ],
    }
  }
}

function become(pod: Pod, stage: Stage, nowMs: number): void {
  pod.stage = stage
  pod.sinceMs = nowMs
}

function endpoint(address: string, terminating: boolean): object {
  return { addresses: [address], conditions: { ready: !terminating, serving: true, terminating } }
}

export function rotatedService(index: number, protocol: 'TCP' | 'UDP'): Rotated {
  const pod = (number: number): string => `10.200.${index}.${number}`
  return {
    name: `${protocol.toLowerCase()}-${index}`,
    protocol,
    address: `172.30.0.${index + 1}`,
    lasting: [pod(1), pod(2)],
    passing: Array.from({ length: 12 }, (_, number) => pod(number + 3)),
  }
}
