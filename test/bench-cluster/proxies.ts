import { join } from 'node:path'
import { requireBinaries } from '../support/reference/binaries.ts'
import { Program } from '../support/reference/process.ts'

export type ProxyName = 'kube-proxy' | 'kprobe'

/** A proxy in one of its modes. */
export interface Contender {
  readonly name: ProxyName
  readonly mode: 'nftables' | 'iptables'
}

export const CONTENDERS: readonly Contender[] = [
  { name: 'kprobe', mode: 'nftables' },
  { name: 'kube-proxy', mode: 'nftables' },
  { name: 'kprobe', mode: 'iptables' },
  { name: 'kube-proxy', mode: 'iptables' },
]

export function contenderText({ name, mode }: Contender): string {
  return `${name}, ${mode}`
}

export interface ProxyOptions {
  readonly name: ProxyName
  readonly mode?: Contender['mode']
  readonly kubeconfig: string
  readonly nodeName: string
  readonly log: string
  readonly environment?: Readonly<Record<string, string>>
}

/** Both take the same flags; everything else is their default. */
export function startProxy(options: ProxyOptions): Program {
  const { name, log, environment = {} } = options
  const [file, ...args] = [...command(name), ...flags(options)]
  if (file === undefined) throw new Error('no command')
  return new Program({ name, file, args, log, environment })
}

function command(name: ProxyName): readonly string[] {
  if (name === 'kube-proxy') return [requireBinaries().kubeProxy]
  const root = process.env.KPROBE_ROOT ?? '.'
  return [process.execPath, process.env.KPROBE_COMMAND ?? join(root, 'dist/kprobe.mjs'), 'run']
}

function flags({ kubeconfig, nodeName, mode = 'nftables' }: ProxyOptions): readonly string[] {
  return [
    `--kubeconfig=${kubeconfig}`,
    `--hostname-override=${nodeName}`,
    `--proxy-mode=${mode}`,
    '--cluster-cidr=10.128.0.0/9',
    // Of the whole machine.
    '--conntrack-max-per-core=0',
    '--conntrack-min=0',
    '--conntrack-tcp-timeout-established=0',
    '--conntrack-tcp-timeout-close-wait=0',
  ]
}
