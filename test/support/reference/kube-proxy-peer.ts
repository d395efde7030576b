import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { requireBinaries } from './binaries.ts'
import { Program } from './process.ts'

/** A KubeProxyConfiguration, or the parts of one that a test is about. */
export type ProxyConfig = { readonly [field: string]: unknown }

interface PeerOptions {
  readonly kubeconfig: string
  readonly nodeName: string
  /** Replaces whole fields of referenceConfig. */
  readonly config?: ProxyConfig
  readonly environment?: Readonly<Record<string, string>>
  /** Starts it again when it exits with 1, as kubelet does: it exits when the addresses of its Node change (1.37). */
  readonly restarts?: true
}

/** Runs a command up to four times, as long as it exits with 1, and ends it with itself. */
const RESTARTS = `
trap 'kill $child; wait $child; exit' TERM
for _ in 1 2 3 4; do
  setpriv --pdeathsig KILL "$@" &
  child=$!
  wait $child
  [ $? = 1 ] || exit
done`

const READY_MAX_MS = 60_000
const HEALTHZ = '127.0.0.1:10256'
const METRICS = '127.0.0.1:10249'

/** What lets it run without privileges on the machine: sizes and timeouts that only the first namespace may set stay. */
export function referenceConfig(options: PeerOptions): ProxyConfig {
  return {
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    mode: 'nftables',
    hostnameOverride: options.nodeName,
    clientConnection: { kubeconfig: options.kubeconfig },
    healthzBindAddress: HEALTHZ,
    metricsBindAddress: METRICS,
    bindAddressHardFail: true,
    conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '0s', tcpCloseWaitTimeout: '0s' },
    // Zero would mean the default of a second.
    nftables: { minSyncPeriod: '10ms', syncPeriod: '30s' },
    ...options.config,
  }
}

/** The real kube-proxy, in the network namespace that this process is in when it starts. */
export class KubeProxyPeer {
  readonly program: Program
  readonly #folder: string

  constructor(options: PeerOptions) {
    this.#folder = mkdtempSync(join(tmpdir(), 'kprobe-peer-'))
    const file = join(this.#folder, 'config.yaml')
    writeFileSync(file, JSON.stringify(referenceConfig(options)))
    const command = [requireBinaries().kubeProxy, `--config=${file}`, '-v=2'] as const
    const [first, ...args] =
      options.restarts === true ? (['sh', '-c', RESTARTS, 'sh', ...command] as const) : command
    this.program = new Program({
      name: 'kube-proxy',
      file: first,
      args,
      log: join(this.#folder, 'log'),
      ...(options.environment === undefined ? {} : { environment: options.environment }),
    })
  }

  get pid(): number {
    return this.program.pid
  }

  /** Resolves once it has programmed something in both families. */
  async synced(): Promise<void> {
    await this.program.until(async () => {
      const metrics = await this.metrics().catch(() => '')
      const families = [...metrics.matchAll(/^kubeproxy_sync_proxy_rules_last_timestamp_seconds\S* (\S+)$/gm)]
      return families.length === 2 && families.every(([, value]) => Number(value) > 0)
    }, READY_MAX_MS)
  }

  async metrics(path = '/metrics'): Promise<string> {
    return (await fetch(`http://${METRICS}${path}`)).text()
  }

  health(path = '/healthz'): Promise<Response> {
    return fetch(`http://${HEALTHZ}${path}`)
  }

  async stop(): Promise<void> {
    await this.program.stop()
    rmSync(this.#folder, { recursive: true, force: true })
  }
}
