import { execFileSync } from 'node:child_process'
import { generateKeyPairSync, randomBytes } from 'node:crypto'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { kubeconfigText } from '../kubeconfig.ts'
import { Api } from './api.ts'
import { type Binaries, requireBinaries } from './binaries.ts'
import { compactEtcd, etcdRevision } from './etcd.ts'
import { freePorts } from './ports.ts'
import type { Program } from './process.ts'
import { startApiServer, startEtcd } from './programs.ts'
import { openOutlet, type RelayHalf } from './relay.ts'
import type { RelayEnd } from './relay-ends.ts'

/** Who may ask, with their groups: the administrator, kube-proxy, and somebody with what a test binds to him. */
const USERS = {
  admin: ['reference-admin', 'system:masters'],
  /** RBAC's defaults bind it to the ClusterRole system:node-proxier. */
  proxy: ['system:kube-proxy', ''],
  bare: ['reference-bare', ''],
} as const
export type User = keyof typeof USERS

export const BARE_USER = USERS.bare[0]
/** Those of the scenarios. */
const SERVICE_CIDRS = '172.30.0.0/16,fd00:172:30::/112'

interface ControlPlaneOptions {
  /** One or two, with a comma. */
  readonly serviceCidrs?: string
  /** Further flags of kube-apiserver. */
  readonly flags?: readonly string[]
}

const READY_MAX_MS = 120_000
const HANGING_MS = 30_000

/**
 * etcd and kube-apiserver, on the loopback address of the network namespace that this process is in when they start.
 * What is here works from any other as well, by unix sockets.
 */
export class ControlPlane {
  readonly api: Api
  readonly #site: Site
  readonly #etcd: Program
  readonly #outlet: RelayHalf
  #server: Program

  private constructor(site: Site, running: Running) {
    this.#site = site
    this.#etcd = running.etcd
    this.#server = running.server
    this.#outlet = running.outlet
    this.api = new Api({
      socketPath: site.apiSocket,
      ca: readFileSync(site.certificate, 'utf8'),
      token: site.tokens.admin,
    })
  }

  /** Resolves once the API server is ready; 5 to 7 s. */
  static async start(options: ControlPlaneOptions = {}): Promise<ControlPlane> {
    execFileSync('ip', ['link', 'set', 'lo', 'up'])
    const site = await chooseSite(options)
    const etcd = startEtcdAt(site)
    const outlet = await openOutlet([
      { listen: { path: site.apiSocket }, dial: { port: site.apiPort } },
      { listen: { path: site.etcdSocket }, dial: { port: site.etcdPort } },
    ])
    await etcd.until(() => answers(etcdRevision(site.etcdSocket)), READY_MAX_MS)
    const server = startServer(site)
    await server.until(() => existsSync(site.key), READY_MAX_MS)
    const plane = new ControlPlane(site, { etcd, outlet, server })
    await plane.#firstReady()
    return plane
  }

  /** Restarts, once, an API server that is not ready after several times what a start takes: one was seen to hang. */
  async #firstReady(): Promise<void> {
    try {
      await this.ready(HANGING_MS)
    } catch {
      await this.stopServer('SIGKILL')
      await this.startServer()
    }
  }

  /** Of the loopback address; relays listen on the same one, so that the certificate fits. */
  get port(): number {
    return this.#site.apiPort
  }

  /** Where a relay dials to get to the API server, from any network namespace. */
  get way(): RelayEnd {
    return { path: this.#site.apiSocket }
  }

  /** For files of a test; goes with everything else. */
  get folder(): string {
    return this.#site.folder
  }

  /** What the server answers to this token. */
  async statusWith(token: string): Promise<number> {
    const { apiSocket, certificate } = this.#site
    const api = new Api({ socketPath: apiSocket, ca: readFileSync(certificate, 'utf8'), token })
    try {
      return (await api.send('GET', '/api/v1/services?limit=1')).status
    } finally {
      api.close()
    }
  }

  get certificate(): string {
    return this.#site.certificate
  }

  get serverPid(): number {
    return this.#server.pid
  }

  token(user: User): string {
    return this.#site.tokens[user]
  }

  /** Writes a kubeconfig and gives its path. `port` is that of a relay, if it is not the server's own. */
  kubeconfig(user: User, options: { readonly port?: number; readonly tokenFile?: string } = {}): string {
    const file = join(this.#site.folder, `kubeconfig-${user}-${randomBytes(4).toString('hex')}`)
    const { port = this.port, tokenFile } = options
    const credentials = tokenFile === undefined ? { token: this.token(user) } : { tokenFile }
    writeFileSync(
      file,
      kubeconfigText({
        server: `https://127.0.0.1:${port}`,
        caFile: this.certificate,
        ...credentials,
      }),
      { mode: 0o600 },
    )
    return file
  }

  async ready(limitMs = READY_MAX_MS): Promise<void> {
    let why: string | undefined
    const isReady = async () => {
      why = await this.api.notReadyYet()
      return why === undefined
    }
    await this.#server.until(isReady, limitMs, () => `not ready: ${why}`)
  }

  /** The API server alone, on the same port with the same objects. Needs the network namespace of the start. */
  async stopServer(signal: NodeJS.Signals = 'SIGTERM'): Promise<void> {
    await this.#server.stop(signal)
  }

  async startServer(): Promise<void> {
    this.#server = startServer(this.#site)
    await this.ready()
  }

  /** Makes every resource version before now too old. */
  async compact(): Promise<void> {
    await compactEtcd(this.#site.etcdSocket)
  }

  /** Ends everything and removes what it wrote. */
  async stop(): Promise<void> {
    this.api.close()
    await this.#server.stop('SIGKILL')
    await this.#etcd.stop('SIGKILL')
    await this.#outlet.close()
    rmSync(this.#site.folder, { recursive: true, force: true })
  }
}

interface Running {
  readonly etcd: Program
  readonly server: Program
  readonly outlet: RelayHalf
}

interface Site {
  readonly binaries: Binaries
  readonly options: ControlPlaneOptions
  readonly folder: string
  readonly apiPort: number
  readonly apiSocket: string
  readonly etcdPort: number
  readonly etcdPeerPort: number
  readonly etcdSocket: string
  readonly certificate: string
  /** The server writes it once the certificate is whole. */
  readonly key: string
  readonly tokens: Record<User, string>
}

async function chooseSite(options: ControlPlaneOptions): Promise<Site> {
  const binaries = requireBinaries()
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-reference-'))
  const [apiPort = 0, etcdPort = 0, etcdPeerPort = 0] = await freePorts(3)
  const token = (): string => randomBytes(16).toString('hex')
  const site = {
    binaries,
    options,
    folder,
    apiPort,
    apiSocket: join(folder, 'api.socket'),
    etcdPort,
    etcdPeerPort,
    etcdSocket: join(folder, 'etcd.socket'),
    certificate: join(folder, 'apiserver.crt'),
    key: join(folder, 'apiserver.key'),
    tokens: { admin: token(), proxy: token(), bare: token() },
  }
  writeTokens(site)
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  writeFileSync(join(folder, 'sa.key'), privateKey.export({ type: 'sec1', format: 'pem' }))
  return site
}

function writeTokens({ folder, tokens }: Site): void {
  const lines = Object.entries(USERS).map(([user, [name, groups]]) => {
    const token = tokens[user === 'admin' || user === 'proxy' ? user : 'bare']
    return `${token},${name},${name}-uid${groups === '' ? '' : `,"${groups}"`}`
  })
  writeFileSync(join(folder, 'tokens.csv'), `${lines.join('\n')}\n`)
}

function startEtcdAt({ binaries, folder, etcdPort, etcdPeerPort }: Site): Program {
  return startEtcd({ clientPort: etcdPort, peerPort: etcdPeerPort }, { binaries, folder, flags: [] })
}

function startServer({ binaries, folder, apiPort, etcdPort, options }: Site): Program {
  const { serviceCidrs = SERVICE_CIDRS, flags = [] } = options
  const place = { port: apiPort, etcdPort, serviceCidrs }
  const own = ['--service-node-port-range=3000-32767', '--allow-privileged=true']
  return startApiServer(place, { binaries, folder, flags: [...own, ...flags] })
}

function answers(asked: Promise<unknown>): Promise<boolean> {
  return asked.then(
    () => true,
    () => false,
  )
}
