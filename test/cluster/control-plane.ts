import type { ChildProcess } from 'node:child_process'
import { generateKeyPairSync, randomBytes } from 'node:crypto'
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { eventually } from '../support/patience.ts'
import { kubeconfigText } from '../support/reference/kubeconfig.ts'
import { etcdArgs } from '../support/reference/programs.ts'
import { createAuthority } from '../support/tls.ts'
import type { Binaries } from './binaries.ts'
import type { Command, Namespaces } from './namespaces.ts'
import { API_PORT, type Site } from './site.ts'

const READY_MAX_MS = 120_000
const MONTH_SECONDS = 30 * 24 * 3600
const ETCD = { clientPort: 2379, peerPort: 2380 }
const NEXT_CERTIFICATE = 'kube-apiserver-next'
const MASTERS = 'system:masters'

/** Who speaks with the API server: the file of each, with its user and group. */
const USERS = {
  admin: ['admin', MASTERS],
  'kube-controller-manager': ['system:kube-controller-manager', MASTERS],
  'kube-scheduler': ['system:kube-scheduler', ''],
  // RBAC's defaults bind it to the ClusterRole system:node-proxier.
  proxy: ['system:kube-proxy', ''],
} as const

export function kubeconfigOf(site: Site, user: string): string {
  return join(site.folder, `${user}.kubeconfig`)
}

/** Keys, certificates, tokens and kubeconfigs of everyone in the cluster, made anew. */
export function writeIdentities(site: Site): void {
  const { folder, subnets, nodes } = site
  const untilSeconds = MONTH_SECONDS
  const authority = createAuthority('kprobe test cluster', { untilSeconds })
  const write = (name: string, text: string) =>
    writeFileSync(join(folder, 'pki', name), text, { mode: 0o600 })
  const issue = (name: string, commonName: string, names: readonly string[]) => {
    const { certPem, keyPem } = authority.issue({ commonName, names, untilSeconds })
    write(`${name}.crt`, certPem)
    write(`${name}.key`, keyPem)
  }
  mkdirSync(join(folder, 'pki'), { recursive: true })
  write('ca.crt', authority.caPem)
  const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  write('service-accounts.key', String(privateKey.export({ type: 'sec1', format: 'pem' })))
  write('service-accounts.pub', String(publicKey.export({ type: 'spki', format: 'pem' })))
  const names = [
    ...['localhost', 'kubernetes', 'kubernetes.default', 'kubernetes.default.svc'],
    ...['kubernetes.default.svc.cluster.local', '127.0.0.1', '::1'],
    ...subnets.flatMap(each => [each.gateway, each.apiService]),
  ]
  // The second one takes the place of the first one later.
  for (const file of ['kube-apiserver', NEXT_CERTIFICATE]) issue(file, 'kube-apiserver', names)
  issue('front-proxy', 'front-proxy-client', ['front-proxy-client'])
  for (const node of nodes) issue(node.name, node.name, [node.name, ...node.addresses])
  const users = [
    ...Object.entries(USERS).map(([file, [user, group]]) => ({ file, user, group })),
    ...nodes.map(({ name }) => ({ file: name, user: `system:node:${name}`, group: 'system:nodes' })),
  ]
  const tokens = users.map(({ file, user, group }) => {
    const token = randomBytes(16).toString('hex')
    const certificateAuthority = join(folder, 'pki/ca.crt')
    writeFileSync(
      kubeconfigOf(site, file),
      kubeconfigText({ server: site.apiUrl, certificateAuthority, token }),
      {
        mode: 0o600,
      },
    )
    return [token, user, `${user}-uid`, ...(group === '' ? [] : [`"${group}"`])].join(',')
  })
  writeFileSync(join(folder, 'tokens.csv'), `${tokens.join('\n')}\n`, { mode: 0o600 })
}

/** Gives the API server another key and certificate; it reads them when it starts. */
export function renewCertificate({ folder }: Site): void {
  for (const kind of ['crt', 'key'])
    copyFileSync(
      join(folder, 'pki', `${NEXT_CERTIFICATE}.${kind}`),
      join(folder, 'pki', `kube-apiserver.${kind}`),
    )
}

/** The control plane's programs, with their flags, in the order in which they need each other. */
export function controlPlaneCommands(site: Site, binaries: Binaries): Readonly<Record<string, Command>> {
  const manager = kubeconfigOf(site, 'kube-controller-manager')
  const scheduler = kubeconfigOf(site, 'kube-scheduler')
  const pki = (name: string) => join(site.folder, 'pki', name)
  const of = (name: string, flags: Readonly<Record<string, string>>): Command => ({
    file: binaries.path(name),
    args: Object.entries(flags).map(([flag, value]) => `--${flag}=${value}`),
  })
  return {
    etcd: { file: binaries.path('etcd'), args: etcdArgs(site.folder, ETCD) },
    'kube-apiserver': of('kube-apiserver', apiServerFlags(site)),
    'kube-controller-manager': of('kube-controller-manager', {
      kubeconfig: manager,
      'authentication-kubeconfig': manager,
      'authorization-kubeconfig': manager,
      'leader-elect': 'false',
      'root-ca-file': pki('ca.crt'),
      'service-account-private-key-file': pki('service-accounts.key'),
      'allocate-node-cidrs': 'false',
      'cluster-cidr': site.subnets.map(({ pods }) => pods).join(','),
      profiling: 'false',
    }),
    'kube-scheduler': of('kube-scheduler', {
      kubeconfig: scheduler,
      'authentication-kubeconfig': scheduler,
      'authorization-kubeconfig': scheduler,
      'leader-elect': 'false',
      profiling: 'false',
    }),
  }
}

function apiServerFlags(site: Site): Readonly<Record<string, string>> {
  const pki = (name: string) => join(site.folder, 'pki', name)
  return {
    'etcd-servers': `http://127.0.0.1:${ETCD.clientPort}`,
    'bind-address': '::',
    'secure-port': String(API_PORT),
    'advertise-address': site.subnets[0]?.gateway ?? '',
    'service-cluster-ip-range': site.subnets.map(({ services }) => services).join(','),
    'token-auth-file': join(site.folder, 'tokens.csv'),
    'authorization-mode': 'Node,RBAC',
    'enable-admission-plugins': 'NodeRestriction',
    'allow-privileged': 'true',
    'client-ca-file': pki('ca.crt'),
    'tls-cert-file': pki('kube-apiserver.crt'),
    'tls-private-key-file': pki('kube-apiserver.key'),
    'service-account-key-file': pki('service-accounts.pub'),
    'service-account-signing-key-file': pki('service-accounts.key'),
    'service-account-issuer': 'https://kubernetes.default.svc.cluster.local',
    'requestheader-client-ca-file': pki('ca.crt'),
    'requestheader-allowed-names': 'front-proxy-client',
    'requestheader-username-headers': 'X-Remote-User',
    'requestheader-group-headers': 'X-Remote-Group',
    'requestheader-extra-headers-prefix': 'X-Remote-Extra-',
    'proxy-client-cert-file': pki('front-proxy.crt'),
    'proxy-client-key-file': pki('front-proxy.key'),
    'kubelet-preferred-address-types': 'InternalIP',
    profiling: 'false',
  }
}

/** kubectl as the administrator, beside the API server. */
export class Kubectl {
  readonly #site: Site
  readonly #namespaces: Namespaces
  readonly #file: string

  constructor(site: Site, namespaces: Namespaces, binaries: Binaries) {
    this.#site = site
    this.#namespaces = namespaces
    this.#file = binaries.path('kubectl')
  }

  /** Gives the output; throws with kubectl's own words. */
  must(args: readonly string[], input = ''): string {
    return this.#namespaces.must(this.#command(args), { input })
  }

  apply(objects: readonly object[]): void {
    this.must(
      ['apply', '--server-side', '-f', '-'],
      objects.map(each => JSON.stringify(each)).join('\n---\n'),
    )
  }

  serves(): boolean {
    return this.#namespaces.run(this.#command(['get', '--raw', '/readyz'])).status === 0
  }

  /** Waits until the API server, which is this process, serves. */
  async ready(server: ChildProcess): Promise<void> {
    const words = () =>
      `kube-apiserver does not serve: ${lastLines(join(this.#site.folder, 'kube-apiserver.log'))}`
    const isReady = () => {
      if (server.exitCode !== null) throw new Error(words())
      return this.serves()
    }
    await eventually(isReady, { limitMs: READY_MAX_MS, describe: words })
  }

  #command(args: readonly string[]): Command {
    return { file: this.#file, args: [`--kubeconfig=${kubeconfigOf(this.#site, 'admin')}`, ...args] }
  }
}

/** The end of a log, with its path. */
export function lastLines(log: string): string {
  return `${log}\n${readFileSync(log, 'utf8').slice(-2_000)}`
}
