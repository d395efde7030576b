import { execFileSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'

const BUILD = fileURLToPath(new URL('../../reference/build.mjs', import.meta.url))

/** Paths of the reference programs. */
export interface Binaries {
  readonly etcd: string
  readonly kubeApiserver: string
  readonly kubeProxy: string
  readonly kubectl: string
  readonly endpointSliceController: string
}

/** Undefined unless all are there; test/reference/build.mjs builds them. */
export function findBinaries(): Binaries | undefined {
  const found: unknown = JSON.parse(execFileSync(process.execPath, [BUILD, '--where'], { encoding: 'utf8' }))
  const path = (name: string): string | undefined => {
    const value = isRecord(found) ? found[name] : undefined
    return typeof value === 'string' ? value : undefined
  }
  const etcd = path('etcd')
  const kubeApiserver = path('kube-apiserver')
  const kubeProxy = path('kube-proxy')
  const kubectl = path('kubectl')
  const endpointSliceController = path('endpointslice-controller')
  if (etcd === undefined || kubeApiserver === undefined || kubeProxy === undefined) return undefined
  if (kubectl === undefined || endpointSliceController === undefined) return undefined
  return { etcd, kubeApiserver, kubeProxy, kubectl, endpointSliceController }
}

export function requireBinaries(): Binaries {
  const binaries = findBinaries()
  if (binaries === undefined)
    throw new Error('the reference programs are missing: node test/reference/build.mjs')
  return binaries
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null
}
