import { isSame } from './equal.ts'
import type { Backend, PortFrontends, ServiceFrontends } from './frontend.ts'

/** As isSame(), with a short way through the lists of backends, which may be long. */
export function isSameService(a: ServiceFrontends | undefined, b: ServiceFrontends | undefined): boolean {
  if (a === undefined || b === undefined || a.ports.length !== b.ports.length) return a === b
  const { ports: portsOfA, ...restOfA } = a
  const { ports: portsOfB, ...restOfB } = b
  return portsOfA.every((port, index) => isSamePort(port, portsOfB[index])) && isSame(restOfA, restOfB)
}

function isSamePort(a: PortFrontends, b: PortFrontends | undefined): boolean {
  if (b === undefined) return false
  const { cluster: clusterOfA, local: localOfA, ...restOfA } = a
  const { cluster: clusterOfB, local: localOfB, ...restOfB } = b
  return isSameList(clusterOfA, clusterOfB) && isSameList(localOfA, localOfB) && isSame(restOfA, restOfB)
}

function isSameList(a: readonly Backend[], b: readonly Backend[]): boolean {
  if (a.length !== b.length) return false
  for (let index = 0; index < a.length; index++) {
    const [left, right] = [a[index], b[index]]
    if (left?.ip !== right?.ip || left?.port !== right?.port || left?.local !== right?.local) return false
  }
  return true
}
