import type { ChildProcess } from 'node:child_process'
import { generateKeyPairSync, randomBytes } from 'node:crypto'
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { kubeconfigText } from '../support/kubeconfig.ts'
import { eventually } from '../support/patience.ts'
import { etcdArgs } from '../support/reference/programs.ts'
import { createAuthority } from '../support/tls.ts'
import type { Binaries } from './binaries.ts'
import type { Command, Namespaces } from './namespaces.ts'
import { API_PORT, type Site } from './site.ts'

const READY_MAX_MS = 120_000
const MONTH_SECONDS = 30 * 24 * 3600
/** Of the first member of etcd. */
const ETCD_PORT = 2379
/** A member that waits for a processor is no member that is lost. */
const ELECTION = ['--heartbeat-interval=500', '--election-timeout=5000']
const MASTERS = 'system:masters'
/** Its certificate is what it is known by: those of others are tokens. */
const PROXY = 'system:kube-proxy'

/** Who speaks with the API server: the file of each, with its user and group. */
const USERS = {
  admin: ['admin', MASTERS],
  'kube-controller-manager': ['system:kube-controller-manager', MASTERS],
  'kube-scheduler': ['system:kube-scheduler', ''],
  // RBAC's defaults bind it to the ClusterRole system:node-proxier.
  proxy: [PROXY, ''],
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
  const issue = (name: string, commonName: string, names: readonly string[], by = authority) => {
    const { certPem, keyPem } = by.issue({ commonName, names, untilSeconds })
    write(`${name}.crt`, certPem)
    write(`${name}.key`, keyPem)
  }
  mkdirSync(join(folder, 'pki'), { recursive: true })
  const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  write('service-accounts.key', String(privateKey.export({ type: 'sec1', format: 'pem' })))
  write('service-accounts.pub', String(publicKey.export({ type: 'spki', format: 'pem' })))
  const names = [
    ...['localhost', 'kubernetes', 'kubernetes.default', 'kubernetes.default.svc'],
    ...['kubernetes.default.svc.cluster.local', '127.0.0.1', '::1'],
    ...subnets.flatMap(each => [each.gateway, each.apiService]),
  ]
  const next = createAuthority('kprobe test cluster, next', { untilSeconds })
  for (const [name, by] of Object.entries({ first: authority, next })) {
    write(`${name}-ca.crt`, by.caPem)
    // The second one takes the place of the first one later.
    for (const file of ['kube-apiserver', 'other-kube-apiserver'])
      issue(`${name}-${file}`, 'kube-apiserver', names, by)
    issue(`${name}-proxy`, PROXY, [PROXY], by)
  }
  trustAuthorities(site, ['first'])
  for (const of of ['kube-apiserver', 'proxy'] as const) renewCertificate(site, of, `first-${of}`)
  issue('front-proxy', 'front-proxy-client', ['front-proxy-client'])
  for (const node of nodes) issue(node.name, node.name, [node.name, ...node.addresses])
  const users = [
    ...Object.entries(USERS).map(([file, [user, group]]) => ({ file, user, group })),
    ...nodes.map(({ name }) => ({ file: name, user: `system:node:${name}`, group: 'system:nodes' })),
  ]
  const tokens = users.map(({ file, user, group }) => {
    const token = randomBytes(16).toString('hex')
    const caFile = authoritiesFile(site)
    const certificate = { certFile: join(folder, 'pki/proxy.crt'), keyFile: join(folder, 'pki/proxy.key') }
    const who = user === PROXY ? { certificate } : { token }
    const text = kubeconfigText({ server: site.apiUrl, caFile, ...who })
    writeFileSync(kubeconfigOf(site, file), text, { mode: 0o600 })
    return [token, user, `${user}-uid`, ...(group === '' ? [] : [`"${group}"`])].join(',')
  })
  writeFileSync(join(folder, 'tokens.csv'), `${tokens.join('\n')}\n`, { mode: 0o600 })
}

/** Two that certificates are of. */
export type AuthorityName = 'first' | 'next'

/** Gives the API server or the proxies the key and the certificate of this name. */
export function renewCertificate(site: Site, of: 'kube-apiserver' | 'proxy', name: string): void {
  for (const kind of ['key', 'crt']) replaceFile(site, `${of}.${kind}`, [`${name}.${kind}`])
}

export function authoritiesFile({ folder }: Site): string {
  return join(folder, 'pki/ca.crt')
}

export function trustsAuthority(site: Site): AuthorityName {
  const trusted = readFileSync(authoritiesFile(site), 'utf8')
  return trusted === readFileSync(join(site.folder, 'pki/next-ca.crt'), 'utf8') ? 'next' : 'first'
}

/** What everyone who reads the authorities' file trusts from now on. */
export function trustAuthorities(site: Site, names: readonly AuthorityName[]): void {
  replaceFile(
    site,
    'ca.crt',
    names.map(name => `${name}-ca.crt`),
  )
}

/** At once: nobody reads the half of it. */
function replaceFile({ folder }: Site, name: string, parts: readonly string[]): void {
  const file = join(folder, 'pki', name)
  const text = parts.map(part => readFileSync(join(folder, 'pki', part), 'utf8')).join('')
  writeFileSync(`${file}.new`, text, { mode: 0o600 })
  renameSync(`${file}.new`, file)
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
    ...etcdCommands(site, binaries),
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

interface Member {
  readonly name: string
  readonly clientPort: number
  readonly peerPort: number
}

function membersOf({ parameters: { members } }: Site): readonly Member[] {
  return Array.from({ length: members }, (_, at) => ({
    name: `etcd-${at + 1}`,
    clientPort: ETCD_PORT + 10 * at,
    peerPort: ETCD_PORT + 1 + 10 * at,
  }))
}

/** The members of the store by their names. */
export function etcdCommands(site: Site, binaries: Binaries): Readonly<Record<string, Command>> {
  const members = membersOf(site)
  const all = members.map(({ name, peerPort }) => `${name}=http://127.0.0.1:${peerPort}`).join(',')
  const argsOf = (member: Member) => [
    ...etcdArgs(join(site.folder, member.name), member),
    // A flag that comes twice has its last value.
    ...[`--name=${member.name}`, `--initial-cluster=${all}`, ...(members.length > 1 ? ELECTION : [])],
  ]
  return Object.fromEntries(
    members.map(member => [member.name, { file: binaries.path('etcd'), args: argsOf(member) }]),
  )
}

function apiServerFlags(site: Site): Readonly<Record<string, string>> {
  const pki = (name: string) => join(site.folder, 'pki', name)
  return {
    'etcd-servers': membersOf(site)
      .map(({ clientPort }) => `http://127.0.0.1:${clientPort}`)
      .join(','),
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
