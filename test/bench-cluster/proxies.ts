import { join } from 'node:path'
import { requireBinaries } from '../support/reference/binaries.ts'
import { Program } from '../support/reference/process.ts'

export type ProxyName = 'kube-proxy' | 'kprobe'

export interface ProxyOptions {
  readonly name: ProxyName
  readonly kubeconfig: string
  readonly nodeName: string
  readonly log: string
  readonly environment?: Readonly<Record<string, string>>
}

/** Both take the same flags; everything else is their default. */
export function startProxy({ name, kubeconfig, nodeName, log, environment = {} }: ProxyOptions): Program {
  const [file, ...args] = [...command(name), ...flags(kubeconfig, nodeName)]
  if (file === undefined) throw new Error('no command')
  return new Program({ name, file, args, log, environment })
}

function command(name: ProxyName): readonly string[] {
  if (name === 'kube-proxy') return [requireBinaries().kubeProxy]
  const root = process.env.KPROBE_ROOT ?? '.'
  return [process.execPath, process.env.KPROBE_COMMAND ?? join(root, 'dist/kprobe.mjs'), 'run']
}

function flags(kubeconfig: string, nodeName: string): readonly string[] {
  return [
    `--kubeconfig=${kubeconfig}`,
    `--hostname-override=${nodeName}`,
    '--proxy-mode=nftables',
    '--cluster-cidr=10.128.0.0/9',
    // Of the whole machine.
    '--conntrack-max-per-core=0',
    '--conntrack-min=0',
    '--conntrack-tcp-timeout-established=0',
    '--conntrack-tcp-timeout-close-wait=0',
  ]
}
