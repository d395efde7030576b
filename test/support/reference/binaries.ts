import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** Paths of the reference programs. */
export interface Binaries {
  readonly etcd: string
  readonly kubeApiserver: string
  readonly kubeProxy: string
  readonly kubectl: string
  readonly endpointSliceController: string
  /** These are built for the long tests alone. */
  readonly helm: string | undefined
  readonly checkRules: string | undefined
  readonly firingAlerts: string | undefined
  readonly actionlint: string | undefined
}

/** A bundle of this file lies elsewhere: whoever runs one names the checkout. */
const ROOT = process.env.KPROBE_ROOT ?? fileURLToPath(new URL('../../..', import.meta.url))

/** Undefined unless all are there; test/reference/build.mjs builds them. */
export function findBinaries(): Binaries | undefined {
  const found = builtBy(join(ROOT, 'test/reference/build.mjs'))
  const path = (name: string): string | undefined => {
    const value = found[name]
    return typeof value === 'string' ? value : undefined
  }
  const etcd = path('etcd')
  const kubeApiserver = path('kube-apiserver')
  const kubeProxy = path('kube-proxy')
  const kubectl = path('kubectl')
  const endpointSliceController = path('endpointslice-controller')
  if (etcd === undefined || kubeApiserver === undefined || kubeProxy === undefined) return undefined
  if (kubectl === undefined || endpointSliceController === undefined) return undefined
  return {
    etcd,
    kubeApiserver,
    kubeProxy,
    kubectl,
    endpointSliceController,
    helm: path('helm'),
    checkRules: path('check-rules'),
    firingAlerts: path('firing-alerts'),
    actionlint: path('actionlint'),
  }
}

export function requireBinaries(): Binaries {
  const binaries = findBinaries()
  if (binaries === undefined)
    throw new Error('the reference programs are missing: node test/reference/build.mjs')
  return binaries
}

/** What a build script has built, as its --where says. */
export function builtBy(script: string): Readonly<Record<string, unknown>> {
  const found: unknown = JSON.parse(execFileSync(process.execPath, [script, '--where'], { encoding: 'utf8' }))
  if (typeof found !== 'object' || found === null) throw new Error(`${script} --where: ${found}`)
  return { ...found }
}
