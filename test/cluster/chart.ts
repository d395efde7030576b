import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Binaries } from './binaries.ts'
import { kubeconfigOf } from './control-plane.ts'
import type { NodeTools } from './node.ts'
import type { Site } from './site.ts'

const RELEASE = 'kprobe'

/** Throws unless test/reference/build.mjs has built helm, which it leaves out where there is no way to its modules. */
export function requireHelm(binaries: Binaries): void {
  if (!existsSync(binaries.path('helm')))
    throw new Error('helm is not built yet: node test/reference/build.mjs')
}

/** The release of the Helm chart in a cluster, by the commands of docs/helm.md. */
export class ChartRelease {
  readonly #site: Site
  readonly #tools: NodeTools
  readonly #namespace: string

  constructor(site: Site, tools: NodeTools, namespace: string) {
    requireHelm(tools.binaries)
    this.#site = site
    this.#tools = tools
    this.#namespace = namespace
  }

  /** Installs the chart of the tree `root`, or upgrades to it; values of an earlier revision go. */
  apply(root: string, values: object): void {
    const chart = join(root, 'deploy/helm/kprobe')
    this.#helm(['upgrade', '--install', RELEASE, chart, '--values', '-'], JSON.stringify(values))
  }

  /** Gives the cluster chart and values of the revision before. */
  rollBack(): void {
    this.#helm(['rollback', RELEASE])
  }

  uninstall(): void {
    this.#helm(['uninstall', RELEASE])
  }

  #helm(args: readonly string[], input = ''): void {
    const { namespaces, binaries } = this.#tools
    const folder = (name: string) => join(this.#site.folder, 'helm', name)
    const command = {
      file: binaries.path('helm'),
      args: [...args, '--namespace', this.#namespace, `--kubeconfig=${kubeconfigOf(this.#site, 'admin')}`],
      // Those of the machine's user stay as they are.
      env: {
        HELM_CACHE_HOME: folder('cache'),
        HELM_CONFIG_HOME: folder('config'),
        HELM_DATA_HOME: folder('data'),
      },
    }
    namespaces.must(command, { input })
  }
}
