import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { COMMAND } from '../daemon.ts'
import type { PipelineConfig } from '../pipeline.ts'
import { referenceConfig } from './kube-proxy-peer.ts'
import { Program } from './process.ts'
import { proxyConfigOf } from './scenario-cluster.ts'

interface KprobePeerOptions {
  readonly kubeconfig: string
  readonly nodeName: string
  readonly config: PipelineConfig
}

/** All daemons of a file system share the default admin socket. */
const FLAGS = ['-v=2', '--admin-socket=']
const READY_MAX_MS = 30_000

/** `kprobe run` from the bundle, with the file that kube-proxy gets, in this network namespace. */
export class KprobePeer {
  readonly program: Program
  readonly #folder: string

  constructor({ kubeconfig, nodeName, config }: KprobePeerOptions) {
    this.#folder = mkdtempSync(join(tmpdir(), 'kprobe-peer-'))
    const file = join(this.#folder, 'config.yaml')
    writeFileSync(
      file,
      JSON.stringify(referenceConfig({ kubeconfig, nodeName, config: proxyConfigOf(config) })),
    )
    this.program = new Program({
      name: 'kprobe',
      file: process.execPath,
      args: [process.env.KPROBE_COMMAND ?? COMMAND, 'run', `--config=${file}`, ...FLAGS, ...ownFlags(config)],
      log: join(this.#folder, 'log'),
    })
  }

  get pid(): number {
    return this.program.pid
  }

  /** Resolves once it is ready: /healthz is what a kubelet asks. */
  async synced(): Promise<void> {
    await this.program.until(async () => {
      const metrics = await this.metrics().catch(() => '')
      return /^kprobe_ready 1$/m.test(metrics)
    }, READY_MAX_MS)
  }

  async metrics(path = '/metrics'): Promise<string> {
    return (await fetch(`http://127.0.0.1:10249${path}`)).text()
  }

  health(path = '/healthz'): Promise<Response> {
    return fetch(`http://127.0.0.1:10256${path}`)
  }

  async stop(): Promise<void> {
    await this.program.stop()
    rmSync(this.#folder, { recursive: true, force: true })
  }
}

/** Settings that kube-proxy does not have. */
function ownFlags({ allowedExternalCidrs, allowedLoadBalancerCidrs }: PipelineConfig): readonly string[] {
  return [
    ...(allowedExternalCidrs === undefined
      ? []
      : [`--allowed-external-cidrs=${allowedExternalCidrs.join(',')}`]),
    ...(allowedLoadBalancerCidrs === undefined
      ? []
      : [`--allowed-load-balancer-cidrs=${allowedLoadBalancerCidrs.join(',')}`]),
  ]
}
